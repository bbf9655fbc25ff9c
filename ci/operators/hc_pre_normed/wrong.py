"""Correct implementations of hc_pre with a norm and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.damage import as_if_rows_had, clamped, cleared, edited
from ci.gate.wrong import Results, Run, Wrong, everywhere, narrow
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
MODEL, TOKENS, SINGLE, SIGNED, ODD, SMALL, THREE, PEAKED = (
    f"hc_pre_normed_{name}"
    for name in ("model", "tokens", "fp32", "signed", "odd", "small", "three_streams", "peaked_fp32")
)

given = functools.partial(wrong.given, EXACT, ("x", "pre", "du", "weight"))
one = functools.partial(wrong.one, EXACT)
exactly = functools.partial(Steps, dtype=torch.float64)


def several(w: HcPreWorkload) -> bool:
    """Several streams."""
    return w.n > 1


def weighted(w: HcPreWorkload) -> bool:
    """Weights that are no powers of two, and wider than bfloat16."""
    return w.values != "one stream" and w.coefficients == torch.float32


def rounds(w: HcPreWorkload) -> bool:
    """The collapsed state rounds."""
    return narrow(w) and weighted(w)


def unrounded(w: HcPreWorkload, y: torch.Tensor) -> torch.Tensor:
    return y


def eps_outside(squares: torch.Tensor, c: int, eps: float) -> torch.Tensor:
    return 1 / ((squares / c).sqrt() + eps)


def of_the_stored(w: HcPreWorkload, x, pre, du, weight) -> Results:
    """dweight of u as it was rounded, over the weight."""
    u = EXACT(w, x, pre, du, weight)["u"]
    return {"dweight": (du.double() * u.double() / weight.double().unsqueeze(1)).sum(1, keepdim=True).float()}


WRONG = [
    Wrong("y not rounded before the norm", exactly(collapsed=unrounded), ("u", "dx", "dpre"), rounds),
    Wrong("y not rounded where dweight is made", exactly(of_dweight=unrounded), ("dweight",), rounds),
    Wrong("y truncated before the norm", exactly(collapsed=lambda w, y: truncated(w, y.float()).double()),
          ("u", "dweight"), MODEL),
    Wrong("y rounded to bfloat16 in every dtype", exactly(collapsed=lambda w, y: bfloat16(y)),
          ("u", "dx", "dweight"), lambda w: w.dtype != torch.bfloat16 and w.values != "one stream"),
    Wrong("eps outside the root", exactly(factor=eps_outside), ("u", "dx", "dpre", "dweight"), SMALL),
    Wrong("no eps", exactly(factor=lambda squares, c, eps: root(squares, c, 0.0)), ("u",), SMALL),
    Wrong("eps divided by the number of columns", exactly(factor=lambda squares, c, eps: root(
        squares, c, eps / c)), ("dx",), SMALL),
    Wrong("a mean over all streams' columns", lambda w, *inputs: exactly(factor=lambda squares, c, eps: root(
        squares, c * w.n, eps))(w, *inputs), ("u", "dx"), several),
    Wrong("a sum of squares in place of the mean", exactly(factor=lambda squares, c, eps: root(
        squares, 1, eps)), ("u",), everywhere),
    Wrong("a mean over columns padded to a power of two", exactly(factor=lambda squares, c, eps: root(
        squares, 1 << (c - 1).bit_length(), eps)), ("u", "dx"), lambda w: w.c & (w.c - 1)),
    Wrong("the mean taken off", exactly(collapsed=lambda w, y: y.to(w.dtype).double() - y.mean(-1, True)),
          ("u", "dweight"), MODEL),
    Wrong("r of TF32", exactly(factor=lambda *given: keep_bits(root(*given).float(), 10).double()),
          ("u", "dpre"), lambda w: not narrow(w)),
    Wrong("r rounded to bfloat16", exactly(factor=lambda *given: bfloat16(root(*given))), ("dpre", "dweight"),
          everywhere),
    Wrong("r of the token before", exactly(factor=lambda *given: root(*given).roll(1, 1)), ("u",),
          lambda w: w.tokens > 1),
    Wrong("r taken for a constant in the backward", exactly(mean=torch.zeros_like), ("dx", "dpre"),
          everywhere),
    Wrong("the mean of h v with the other sign", exactly(mean=torch.neg), ("dx", "dpre"), everywhere),
    Wrong("the mean of h v rounded to bfloat16", exactly(mean=bfloat16), ("dx", "dpre"),
          lambda w: not narrow(w)),
    Wrong("the mean of h v of the token before", exactly(mean=lambda t: t.roll(1, 1)), ("dx",), PEAKED),
    Wrong("dy rounded before dpre", exactly(state=bfloat16), ("dpre",),
          lambda w: w.coefficients == torch.float32),
    Wrong("the weight left out", given(weight=torch.ones_like), ("u", "dx"), everywhere),
    Wrong("the weight left out of dx alone", given(weight=torch.ones_like), ("dx",), MODEL),
    Wrong("the weight rounded to bfloat16", given(weight=bfloat16), ("u", "dpre"), lambda w: not narrow(w)),
    Wrong("one and the weight", given(weight=lambda t: 1 + t), ("u", "dpre"), everywhere),
    Wrong("the weight of the column before", given(weight=lambda t: t.roll(1, -1)), ("u", "dpre"),
          everywhere),
    Wrong("dweight with the weight in it", lambda w, *inputs: {
        "dweight": (EXACT(w, *inputs)["dweight"] * inputs[3].unsqueeze(1)).float()}, ("dweight",),
          everywhere),
    Wrong("dweight of u as it was rounded", of_the_stored, ("dweight",), rounds),
    Wrong("dweight without the last token", exactly(tokens=lambda t: t[..., :-1].sum(-1)), ("dweight",),
          everywhere),
    Wrong("dweight up to whole shares of tokens", exactly(tokens=lambda t: t[
        ..., : t.size(-1) // 256 * 256].sum(-1)), ("dweight",), TOKENS),
    Wrong("dweight with padding that reads the last token", exactly(tokens=clamped(3)), ("dweight",), ODD),
    Wrong("dweight in a bfloat16 accumulator", Steps(tokens=functools.partial(
        columns.in_order, partial=bfloat16)), ("dweight",), lambda w: w.tokens > 2),
    Wrong("dweight rounded to bfloat16", one("dweight", bfloat16), ("dweight",), everywhere),
    Wrong("dweight of the element before added", one(
        "dweight", edited(lambda t: t[1:].add_(t[:-1].clone()))), ("dweight",), lambda w: w.batch > 1),
    Wrong("weights of the stream before", given(pre=lambda t: t.roll(1, -1)), ("u", "dx"), several),
    Wrong("weights of the token before", given(pre=lambda t: t.roll(1, 1)), ("dx",), lambda w: w.tokens > 1),
    Wrong("weights rounded to bfloat16", given(pre=bfloat16), ("u", "dx"), weighted),
    Wrong("weights without their sign", given(pre=torch.abs), ("u", "dx"), SIGNED),
    Wrong("weights at multiples of four streams", given(pre=as_if_rows_had(4)), ("u", "dx"), THREE),
    Wrong("the last stream left out", given(x=cleared(..., -1, slice(None))), ("u", "dpre"), several),
    Wrong("rows at multiples of eight entries", given(x=as_if_rows_had(72)), ("u", "dpre"), ODD),
    Wrong("upstream rows at multiples of eight entries", given(du=as_if_rows_had(72)), ("dx", "dweight"),
          ODD),
    Wrong("upstream gradient rounded to bfloat16", given(du=lambda t: t.bfloat16().to(t.dtype)),
          ("dx", "dpre", "dweight"), lambda w: w.dtype != torch.bfloat16),
    Wrong("results truncated", Steps(last=truncated), ("u", "dx"), narrow),
    Wrong("the last column of dx never computed", one("dx", cleared(..., -1)), ("dx",), everywhere),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, SINGLE, "u", 2),
    *wrong.of_any(right, SIGNED, "dx", 2, only=("written", "behind the end", "lane", "line", "run")),
    *wrong.of_any(right, THREE, "dweight", 2, only=("written", "bits")),
]  # fmt: skip
