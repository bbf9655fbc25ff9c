"""Correct implementations of hc_pre and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, half_up, keep_bits, truncated
from ci.gate.columns import Change
from ci.gate.damage import as_if_rows_had, cleared
from ci.gate.wrong import Run, Wrong, everywhere, narrow
from ci.operators.hc_pre.steps import EXACT, Steps, pytorch, right
from helion_sinkhorn.lab.pre.budget import RESULTS
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload

VENDORS = {
    "nvidia": Steps(Arithmetic(fused=True), columns.tiles),
    "amd": Steps(Arithmetic(fused=True, sums="tree"), columns.tiles_one_by_one),
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
    **{name: Steps(columns=total) for name, total in columns.SUMS.items()},
}
MODEL, TOKENS, SINGLE, SIGNED, ODD, PEAKED, THREE = (
    f"hc_pre_{name}" for name in ("model", "tokens", "fp32", "signed", "odd", "peaked_fp32", "three_streams")
)

given = functools.partial(wrong.given, EXACT, ("x", "pre", "dy"))
one = functools.partial(wrong.one, EXACT)


def added(w: HcPreWorkload) -> bool:
    """Sums of several streams that round."""
    return w.n > 1 and w.values != "one stream"


def weighted(w: HcPreWorkload) -> bool:
    """Weights that are no powers of two, and wider than bfloat16."""
    return w.values != "one stream" and wide(w)


def wide(w: HcPreWorkload) -> bool:
    return w.coefficients == torch.float32


def accumulating(partial: Change) -> Run:
    """An accumulator that rounds."""
    return Steps(Arithmetic(partial=partial))


WRONG = [
    Wrong("weights of the piece of tokens before", wrong.of_the_piece_before(right, 1), ("y", "dx"), MODEL),
    Wrong("weights at multiples of four streams", given(pre=as_if_rows_had(4)), ("y", "dx"), THREE),
    Wrong("weights left out", given(pre=torch.ones_like), ("y", "dx"), everywhere),
    Wrong("weights without their sign", given(pre=torch.abs), ("y", "dx"), SIGNED),
    Wrong("weights rounded to bfloat16", given(pre=bfloat16), ("y", "dx"), weighted),
    Wrong("small weights 0", given(pre=lambda t: torch.where(t.abs() < 2.0**-8, 0.0, t)), ("y", "dx"),
          PEAKED),
    Wrong("the last stream left out", given(x=cleared(..., -1, slice(None))), ("y", "dpre"), everywhere),
    Wrong("streams of TF32", given(x=lambda t: keep_bits(t, 10)), ("y", "dpre"), lambda w: not narrow(w)),
    Wrong("rows at multiples of eight entries", given(x=as_if_rows_had(72)), ("y", "dpre"), ODD),
    Wrong("tokens wrap at 256", given(x=lambda t: t[:, torch.arange(t.size(1)) % 256]), ("y", "dpre"),
          TOKENS),
    Wrong("upstream gradient rounded to bfloat16", given(dy=lambda t: t.bfloat16().to(t.dtype)),
          ("dx", "dpre"), lambda w: w.dtype != torch.bfloat16),
    Wrong("products rounded before they are added", wrong.rounding(Steps, "product"), ("y",),
          lambda w: narrow(w) and added(w)),
    Wrong("a narrow accumulator", wrong.rounding(accumulating, "partial"), ("y",),
          lambda w: narrow(w) and added(w) and w.n > 2),
    Wrong("results truncated", Steps(last=truncated), ("y", "dx"),
          lambda w: narrow(w) and w.values != "one stream"),
    Wrong("ties away from zero at the store", Steps(last=half_up), ("y",), TOKENS,
          hidden="one in 2^16 float32 numbers is a tie"),
    Wrong("a product not rounded before it is added", Steps(Arithmetic(fused=True)), ("y",), SINGLE,
          hidden="one rounding less: nearer to the truth than the budget asks"),
    Wrong("dpre of 15 bits", one("dpre", lambda t: keep_bits(t.float(), 14)), ("dpre",), wide),
    Wrong("dpre without the last column", Steps(
        columns=lambda t: t[..., :-1].sum(-1), dtype=torch.float64), ("dpre",), everywhere),
    Wrong("the last column of dx never computed", one("dx", cleared(..., -1)), ("dx",), everywhere),
    Wrong("a part of the column before", one("y", lambda t: t + 2.0**-5 * t.roll(1, -1)), ("y",), everywhere),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, SINGLE, "y", 2),
    *wrong.of_any(right, SIGNED, "dx", 2, only=("written", "behind the end", "lane", "line", "run")),
    *wrong.of_any(right, THREE, "dpre", 2, only=("written", "bits")),
]  # fmt: skip
