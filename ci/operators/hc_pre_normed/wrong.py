"""Correct implementations of hc_pre with a norm and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.damage import as_if_rows_had, cleared
from ci.gate.wrong import Run, Wrong, everywhere, narrow
from ci.operators.hc_pre_normed.steps import EXACT, Steps, pytorch, right, root
from helion_sinkhorn.lab.pre.normed.budget import RESULTS
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload

VENDORS = {
    "nvidia": Steps(Arithmetic(fused=True), columns.tree, columns.in_order),
    "amd": Steps(Arithmetic(fused=True, sums="tree"), columns.tree, columns.in_order),
}
BASELINE = pytorch
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": right,
    "streams in order": Steps(),
    "streams in order, fused": Steps(Arithmetic(fused=True)),
    "last stream first": Steps(Arithmetic(sums="backwards")),
    "a tree of streams": Steps(Arithmetic(sums="tree")),
    "tokens in shares": Steps(tokens=columns.programs),
    **{name: Steps(columns=total) for name, total in columns.SUMS.items()},
}
TOKENS, SINGLE, SIGNED, ODD, SMALL, THREE = (
    f"hc_pre_normed_{name}" for name in ("tokens", "fp32", "signed", "odd", "small", "three_streams")
)

given = functools.partial(wrong.given, EXACT, ("x", "pre", "du", "weight"))
one = functools.partial(wrong.one, EXACT)
exactly = functools.partial(Steps, dtype=torch.float64)


def weighted(w: HcPreWorkload) -> bool:
    """Weights that are no powers of two, and wider than bfloat16."""
    return w.values != "one stream" and w.coefficients == torch.float32


def rounds(w: HcPreWorkload) -> bool:
    """The collapsed state rounds."""
    return narrow(w) and weighted(w)


def eps_outside(squares: torch.Tensor, c: int, eps: float) -> torch.Tensor:
    return 1 / ((squares / c).sqrt() + eps)


WRONG = [
    Wrong("y not rounded before the norm", exactly(collapsed=lambda w, y: y), ("u", "dx", "dpre"), rounds),
    Wrong("eps outside the root", exactly(factor=eps_outside), ("u", "dx", "dpre", "dweight"), SMALL),
    Wrong("a mean over columns padded to a power of two", exactly(factor=lambda squares, c, eps: root(
        squares, 1 << (c - 1).bit_length(), eps)), ("u", "dx"), lambda w: w.c & (w.c - 1)),
    Wrong("r of TF32", exactly(factor=lambda *given: keep_bits(root(*given).float(), 10).double()),
          ("u", "dpre"), lambda w: not narrow(w)),
    Wrong("r taken for a constant in the backward", exactly(mean=torch.zeros_like), ("dx", "dpre"),
          everywhere),
    Wrong("dy rounded before dpre", exactly(state=bfloat16), ("dpre",),
          lambda w: w.coefficients == torch.float32),
    Wrong("the weight left out", given(weight=torch.ones_like), ("u", "dx"), everywhere),
    Wrong("dweight without the last token", exactly(tokens=lambda t: t[..., :-1].sum(-1)), ("dweight",),
          everywhere),
    Wrong("dweight up to whole shares of tokens", exactly(tokens=lambda t: t[
        ..., : t.size(-1) // 256 * 256].sum(-1)), ("dweight",), TOKENS),
    Wrong("dweight rounded to bfloat16", one("dweight", bfloat16), ("dweight",), everywhere),
    Wrong("weights rounded to bfloat16", given(pre=bfloat16), ("u", "dx"), weighted),
    Wrong("weights without their sign", given(pre=torch.abs), ("u", "dx"), SIGNED),
    Wrong("weights at multiples of four streams", given(pre=as_if_rows_had(4)), ("u", "dx"), THREE),
    Wrong("the last stream left out", given(x=cleared(..., -1, slice(None))), ("u", "dpre"),
          lambda w: w.n > 1),
    Wrong("rows at multiples of eight entries", given(x=as_if_rows_had(72)), ("u", "dpre"), ODD),
    Wrong("upstream gradient rounded to bfloat16", given(du=lambda t: t.bfloat16().to(t.dtype)),
          ("dx", "dpre", "dweight"), lambda w: w.dtype != torch.bfloat16),
    Wrong("results truncated", Steps(last=truncated), ("u", "dx"), narrow),
    Wrong("the last column of dx never computed", one("dx", cleared(..., -1)), ("dx",), everywhere),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, SINGLE, "u", 2),
    *wrong.of_any(right, SIGNED, "dx", 2, only=("written", "behind the end", "lane", "line", "run")),
    *wrong.of_any(right, THREE, "dweight", 2, only=("written", "bits")),
]  # fmt: skip
