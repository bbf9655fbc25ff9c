"""Correct implementations of hc_post and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.columns import Change
from ci.gate.damage import as_if_rows_had, cleared
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
MODEL, SINGLE, SIGNED, BIAS, TOKENS, LAST, ODD, THREE, OUTPUT = (
    f"hc_post_{name}"
    for name in (
        "model", "fp32", "signed", "bias", "tokens", "outputs_last", "odd", "three_streams", "wide_output",
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


given = functools.partial(wrong.given, EXACT, NAMES)
one = functools.partial(wrong.one, EXACT)


def accumulating(partial: Change) -> Run:
    """An accumulator that rounds."""
    return Steps(Arithmetic(partial=partial))


WRONG = [
    Wrong("comb transposed", given(comb=lambda t: t.mT), ("out", "dx"), several),
    Wrong("comb at multiples of four streams", given(comb=as_if_rows_had(4)), ("out", "dx"), THREE),
    Wrong("comb_order ignored", wrong.called(EXACT, comb_order="io"), ("out", "dx", "dcomb"), LAST),
    Wrong("comb without its last input stream", given(x=last_stream_lost), ("out", "dcomb"), everywhere),
    Wrong("post left out", given(post=torch.ones_like), ("out", "df"), everywhere),
    Wrong("weights of the piece of tokens before", wrong.of_the_piece_before(right, 2, 3), ("out", "df"),
          MODEL),
    Wrong("the output of the sublayer left out", given(f=torch.zeros_like), ("out", "dpost"),
          lambda w: not w.has_bias),
    Wrong("rows of f at multiples of eight entries", given(f=as_if_rows_had(72)), ("out", "dpost"), ODD),
    Wrong("f of float32 through bfloat16", given(f=lambda t: t.bfloat16().float()), ("dpost",), OUTPUT),
    Wrong("df of float32 through bfloat16", one("df", bfloat16), ("df",), OUTPUT),
    Wrong("the bias left out", given(bias=torch.zeros_like), ("out", "dpost"), biased),
    Wrong("the bias rounded to bfloat16", given(bias=bfloat16), ("dpost",), biased),
    Wrong("weights rounded to bfloat16", given(post=bfloat16, comb=bfloat16), WEIGHTED,
          lambda w: wide_weights(w) and mixes(w)),
    Wrong("streams of TF32", given(x=lambda t: keep_bits(t, 10)), ("out", "dcomb"), lambda w: not narrow(w)),
    Wrong("rows at multiples of eight entries", given(x=as_if_rows_had(72)), ("out", "dcomb"), ODD),
    Wrong("tokens wrap at 256", given(x=lambda t: t[:, torch.arange(t.size(1)) % 256]), ("out", "dcomb"),
          TOKENS),
    Wrong("upstream gradient rounded to bfloat16", given(grad=lambda t: t.bfloat16().to(t.dtype)),
          ("df", "dx", "dpost", "dcomb"), lambda w: w.dtype != torch.bfloat16),
    Wrong("products rounded before they are added", wrong.rounding(Steps, "product"), WEIGHTED,
          lambda w: narrow(w) and mixes(w) and w.f_dtype is None),
    Wrong("a narrow accumulator", wrong.rounding(accumulating, "partial"), ("out",),
          lambda w: narrow(w) and mixes(w)),
    Wrong("products not rounded before they are added", Steps(Arithmetic(fused=True)), WEIGHTED, SINGLE,
          hidden="one rounding less: nearer to the truth than the budget asks"),
    Wrong("results truncated", Steps(last=truncated), WEIGHTED,
          lambda w: narrow(w) and w.values != "permutation" and w.f_dtype is None),
    Wrong("dpost and dcomb of products rounded to bfloat16", Steps(product=bfloat16), SUMMED, wide_weights),
    Wrong("dpost and dcomb without the last column", Steps(
        columns=lambda t: t[..., :-1].sum(-1), dtype=torch.float64), SUMMED, everywhere),
    Wrong("dcomb transposed", one("dcomb", lambda t: t.mT), ("dcomb",), several),
    Wrong("df without the last output stream", given(grad=last_stream_lost), ("df", "dx"), everywhere),
    Wrong("dbias without the last token", Steps(
        tokens=lambda t: t[..., :-1].sum(-1), dtype=torch.float64), ("dbias",), biased),
    Wrong("dbias in a bfloat16 accumulator", Steps(tokens=functools.partial(
        columns.in_order, partial=bfloat16)), ("dbias",),
          lambda w: biased(w) and w.tokens > 1 and (w.f_dtype or w.dtype) == torch.float32),
    *wrong.damages(EXACT, ()),
    *wrong.of_any(right, SINGLE, "out", 4),
    *wrong.of_any(right, SIGNED, "dx", 4, only=("written", "behind the end", "lane", "line")),
    *wrong.of_any(right, THREE, "dcomb", 4, only=("written", "bits")),
    *wrong.of_any(right, BIAS, "dbias", 4, only=("written", "bits")),
]  # fmt: skip
