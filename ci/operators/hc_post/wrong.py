"""Correct implementations of hc_post and wrong ones."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.columns import Change
from ci.gate.damage import as_if_rows_had, at, clamped, cleared, edited
from ci.gate.wrong import Run, Wrong, everywhere, narrow
from ci.operators.hc_post.steps import EXACT, NAMES, Steps, pytorch, right
from helion_sinkhorn.lab.post.workloads import HcPostWorkload

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
    "the output behind the streams": Steps(output_first=False),
    "streams in order, fused": Steps(Arithmetic(fused=True), output_first=False),
    "last stream first": Steps(Arithmetic(sums="backwards")),
    "a tree of streams": Steps(Arithmetic(sums="tree")),
    **{name: Steps(columns=total) for name, total in columns.SUMS.items()},
    "tokens in tiles": Steps(tokens=columns.tiles),
    "tokens in order": Steps(tokens=columns.in_order),
}
MODEL, SINGLE, SIGNED, BIAS, TOKENS, LAST, ODD, PERMUTATION, THREE, OUTPUT = (
    f"hc_post_{name}"
    for name in (
        "model", "fp32", "signed", "bias", "tokens", "outputs_last", "odd", "permutation", "three_streams",
        "wide_output",
    )
)  # fmt: skip
WEIGHTED = ("out", "df", "dx")
"""Results that take the weights, and are rounded to the dtypes of x and f."""
SUMMED = ("dpost", "dcomb")
last_stream_lost = cleared(..., -1, slice(None))


def wide_weights(w: HcPostWorkload) -> bool:
    return w.coefficients == torch.float32


def several(w: HcPostWorkload) -> bool:
    return w.n > 1


def mixes(w: HcPostWorkload) -> bool:
    """Streams that comb adds, with weights that are no powers of two."""
    return w.n > 1 and w.values != "permutation"


def biased(w: HcPostWorkload) -> bool:
    return w.has_bias


def many_tokens(w: HcPostWorkload) -> bool:
    return w.has_bias and w.tokens > 1


given = functools.partial(wrong.given, EXACT, NAMES)
one = functools.partial(wrong.one, EXACT)


def summed(total: Change) -> Run:
    """dpost and dcomb from another sum over columns, in float64."""
    return Steps(columns=total, dtype=torch.float64)


def over_tokens(total: Change) -> Run:
    """dbias from another sum over tokens, in float64."""
    return Steps(tokens=total, dtype=torch.float64)


def accumulating(partial: Change) -> Run:
    """An accumulator that rounds."""
    return Steps(Arithmetic(partial=partial))


def without_bias_in_dpost(w, f, x, post, comb, grad, bias):
    return {"dpost": EXACT(replace(w, has_bias=False), f, x, post, comb, grad)["dpost"]}


def tf32(t: torch.Tensor) -> torch.Tensor:
    return keep_bits(t, 10)


def post_twice(w, f, x, post, *rest):
    """The sublayer's output weighted before, and again here."""
    return {"out": EXACT(w, f, x, post.double().square(), *rest)["out"]}


def post_on_streams(w, f, x, post, comb, *rest):
    """Output streams weighted as a whole."""
    by_output = post.unsqueeze(-2) if w.comb_order == "io" else post.unsqueeze(-1)
    return {"out": EXACT(w, f, x, post, comb.double() * by_output, *rest)["out"]}


WRONG = [
    Wrong("comb transposed", given(comb=lambda t: t.mT), ("out", "dx"), several),
    Wrong("comb transposed in dx alone", given(comb=lambda t: t.mT), ("dx",), several),
    Wrong("comb of the token before", given(comb=lambda t: t.roll(1, 1)), ("out", "dx"),
          lambda w: w.tokens > 1),
    Wrong("comb at multiples of four streams", given(comb=as_if_rows_had(4)), ("out", "dx"), THREE),
    Wrong("comb_order ignored", wrong.called(EXACT, comb_order="io"), ("out", "dx", "dcomb"), LAST),
    Wrong("streams not mixed", given(comb=lambda t: torch.eye(t.size(-1)).expand_as(t)), ("out", "dx"),
          everywhere),
    Wrong("comb without its last input stream", given(x=last_stream_lost), ("out", "dcomb"), everywhere),
    Wrong("post applied twice", post_twice, ("out",), everywhere),
    Wrong("post on the mixed streams too", post_on_streams, ("out",), everywhere),
    Wrong("post left out", given(post=torch.ones_like), ("out", "df"), everywhere),
    Wrong("post of the stream before", given(post=lambda t: t.roll(1, -1)), ("out", "df"), several),
    Wrong("post at multiples of four streams", given(post=as_if_rows_had(4)), ("out", "df"), THREE),
    Wrong("weights of the piece of tokens before", wrong.of_the_piece_before(right, 2, 3), ("out", "df"),
          MODEL),
    Wrong("the output of the sublayer left out", given(f=torch.zeros_like), ("out", "dpost"),
          lambda w: not w.has_bias),
    Wrong("f of the element before", given(f=lambda t: t.roll(1, 0)), ("out", "dpost"), SINGLE),
    Wrong("rows of f at multiples of eight entries", given(f=as_if_rows_had(72)), ("out", "dpost"), ODD),
    Wrong("f of float32 through bfloat16", given(f=lambda t: t.bfloat16().float()), ("dpost",), OUTPUT),
    Wrong("df of float32 through bfloat16", one("df", bfloat16), ("df",), OUTPUT),
    Wrong("the bias left out", given(bias=torch.zeros_like), ("out", "dpost"), biased),
    Wrong("the bias left out of dpost", without_bias_in_dpost, ("dpost",), biased),
    Wrong("the bias rounded to bfloat16", given(bias=bfloat16), ("dpost",), biased),
    Wrong("weights rounded to bfloat16", given(post=bfloat16, comb=bfloat16), WEIGHTED,
          lambda w: wide_weights(w) and mixes(w)),
    Wrong("weights of TF32", given(post=tf32, comb=tf32), WEIGHTED,
          lambda w: not narrow(w) and wide_weights(w)),
    Wrong("streams of TF32", given(x=tf32), ("out", "dcomb"), lambda w: not narrow(w)),
    Wrong("streams rounded to bfloat16", given(x=lambda t: t.bfloat16().to(t.dtype)), ("out", "dcomb"),
          lambda w: w.dtype != torch.bfloat16),
    Wrong("rows at multiples of eight entries", given(x=as_if_rows_had(72)), ("out", "dcomb"), ODD),
    Wrong("tokens wrap at 256", given(x=lambda t: t[:, torch.arange(t.size(1)) % 256]), ("out", "dcomb"),
          TOKENS),
    Wrong("upstream gradient rounded to bfloat16", given(grad=lambda t: t.bfloat16().to(t.dtype)),
          ("df", "dx", "dpost", "dcomb"), lambda w: w.dtype != torch.bfloat16),
    Wrong("upstream gradient of the stream before", given(grad=lambda g: g.roll(1, -2)),
          ("df", "dx", "dpost", "dcomb"), PERMUTATION),
    Wrong("products rounded before they are added", wrong.rounding(Steps, "product"), WEIGHTED,
          lambda w: narrow(w) and mixes(w) and w.f_dtype is None),
    Wrong("product and mixed streams rounded each by itself", wrong.rounding(Steps, "mixed"), ("out",),
          narrow),
    Wrong("a narrow accumulator", wrong.rounding(accumulating, "partial"), ("out",),
          lambda w: narrow(w) and mixes(w)),
    Wrong("products not rounded before they are added", Steps(Arithmetic(fused=True)), WEIGHTED, SINGLE,
          hidden="one rounding less: nearer to the truth than the budget asks"),
    Wrong("results truncated", Steps(last=truncated), WEIGHTED,
          lambda w: narrow(w) and w.values != "permutation" and w.f_dtype is None),
    Wrong("dpost and dcomb of products rounded to bfloat16", Steps(product=bfloat16), SUMMED, wide_weights),
    Wrong("dpost and dcomb in a bfloat16 accumulator", Steps(columns=functools.partial(
        columns.tiles, partial=bfloat16)), SUMMED, lambda w: wide_weights(w) and w.c > columns.TILE),
    Wrong("dpost and dcomb in parts of half precision", Steps(columns=functools.partial(
        columns.tiles, partial=tf32)), SUMMED, SINGLE),
    Wrong("dpost and dcomb without the last column", summed(lambda t: t[..., :-1].sum(-1)), SUMMED,
          everywhere),
    Wrong("dpost and dcomb up to whole tiles", summed(lambda t: t[..., : t.size(-1) // 64 * 64].sum(-1)),
          SUMMED, lambda w: w.c % 64),
    Wrong("dpost and dcomb with padding that reads the last column", summed(clamped(5)), SUMMED, ODD),
    Wrong("dcomb transposed", one("dcomb", lambda t: t.mT), ("dcomb",), several),
    Wrong("dcomb weighted by comb", lambda w, f, x, post, comb, *rest: {
        "dcomb": (EXACT(w, f, x, post, comb, *rest)["dcomb"].double() * comb).to(w.coefficients)},
          ("dcomb",), everywhere),
    Wrong("dpost of the stream before", one("dpost", lambda t: t.roll(1, -1)), ("dpost",), several),
    Wrong("df of the first output stream", given(post=at((..., slice(1, None)), lambda t: 0 * t[..., 1:])),
          ("df",), several),
    Wrong("df without the last output stream", given(grad=last_stream_lost), ("df", "dx"), everywhere),
    Wrong("dx the mean over output streams", given(comb=lambda t: torch.full_like(t, 1 / t.size(-1))),
          ("dx",), everywhere),
    Wrong("dbias without the last token", over_tokens(lambda t: t[..., :-1].sum(-1)), ("dbias",), biased),
    Wrong("dbias in a bfloat16 accumulator", Steps(tokens=functools.partial(
        columns.in_order, partial=bfloat16)), ("dbias",),
          lambda w: many_tokens(w) and (w.f_dtype or w.dtype) == torch.float32),
    Wrong("dbias of df as it was rounded", lambda w, *inputs: {
        "dbias": right(w, *inputs)["df"].float().sum(1, keepdim=True)}, ("dbias",), BIAS),
    Wrong("dbias of the element before added", one(
        "dbias", edited(lambda t: t[1:].add_(t[:-1].clone()))), ("dbias",), BIAS),
    *wrong.damages(EXACT, ()),
    *wrong.of_any(right, SINGLE, "out", 4),
    *wrong.of_any(right, SIGNED, "dx", 4, only=("written", "behind the end", "lane", "line")),
    *wrong.of_any(right, THREE, "dcomb", 4, only=("written", "bits")),
    *wrong.of_any(right, BIAS, "dbias", 4, only=("written", "bits")),
]  # fmt: skip
