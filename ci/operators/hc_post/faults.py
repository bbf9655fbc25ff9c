"""Correct implementations of hc_post and wrong ones.

GOOD differs in the order of sums and in what is fused, FAULTS in what no implementation may do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import columns, gate
from ci.gate.arithmetic import Arithmetic, bfloat16, keep_bits
from ci.gate.columns import Change, same
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.operators.hc_post.steps import EXACT, NAMES, Steps, pytorch, the_cpu_path
from helion_sinkhorn.lab.post.workloads import HcPostWorkload

VENDORS = {
    "nvidia": Steps(Arithmetic(fused=True), columns.tiles),
    "amd": Steps(Arithmetic(fused=True, sums="tree"), columns.tiles_one_by_one),
}
BASELINE = pytorch

GOOD: dict[str, gate.Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": the_cpu_path,
    "streams in order": Steps(),
    "the output behind the streams": Steps(output_first=False),
    "streams in order, fused": Steps(Arithmetic(fused=True), output_first=False),
    "last stream first": Steps(Arithmetic(sums="backwards")),
    "a tree of streams": Steps(Arithmetic(sums="tree")),
    **{name: Steps(columns=total) for name, total in columns.SUMS.items()},
    "tokens in tiles": Steps(tokens=columns.tiles),
    "tokens in order": Steps(tokens=columns.in_order),
}
WEIGHTED = ("out", "df", "dx")
"""Results that take the weights, and are rounded to the dtypes of x and f."""
SUMMED = ("dpost", "dcomb")


def narrow(w: HcPostWorkload) -> bool:
    return w.dtype != torch.float32


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


def given(**change: Change) -> gate.Run:
    """Right for other inputs, by name."""

    def run(w, *inputs):
        named = zip(NAMES, inputs, strict=False)
        return EXACT(w, *(change.get(name, same)(t) for name, t in named))

    return run


def changed(change: Callable[[HcPostWorkload, gate.Results], gate.Results]) -> gate.Run:
    """Right results, then exchanged or damaged."""

    def run(w, *inputs):
        found = EXACT(w, *inputs)
        return found | change(w, found)

    return run


def damaged(damage: Change) -> gate.Run:
    return changed(lambda w, found: {name: damage(t) for name, t in found.items()})


def one(name: str, change: Change) -> gate.Run:
    return changed(lambda w, found: {name: change(found[name]).to(found[name].dtype)})


def summed(total: Change) -> gate.Run:
    """dpost and dcomb from another sum over columns, in float64."""
    return Steps(columns=total, dtype=torch.float64)


def over_tokens(total: Change) -> gate.Run:
    """dbias from another sum over tokens, in float64."""
    return Steps(tokens=total, dtype=torch.float64)


def in_the_dtype_of_x(*fields: str) -> gate.Run:
    """Steps that round more than once: these fields round to the dtype of x."""
    return lambda w, *inputs: Steps(
        **{name: lambda t: t.to(w.dtype).float() for name in fields}
    )(w, *inputs)  # fmt: skip


def without_bias_in_dpost(w, f, x, post, comb, grad, bias):
    return {"dpost": EXACT(replace(w, has_bias=False), f, x, post, comb, grad)["dpost"]}


def tf32(t: torch.Tensor) -> torch.Tensor:
    return keep_bits(t, 10)


def last_lost(t: torch.Tensor, axis: int = -1) -> torch.Tensor:
    t = t.clone(memory_format=torch.contiguous_format)
    t.select(axis, -1).zero_()
    return t


def truncated(w: HcPostWorkload, t: torch.Tensor) -> torch.Tensor:
    """Cut to the significand of the workload's dtype."""
    return keep_bits(t, {torch.bfloat16: 7, torch.float16: 10}[w.dtype])


def post_twice(w, f, x, post, *rest):
    """The sublayer's output weighted before, and again here."""
    return {"out": EXACT(w, f, x, post.double().square(), *rest)["out"]}


def post_on_streams(w, f, x, post, comb, *rest):
    """Output streams weighted as a whole."""
    by_output = post.unsqueeze(-2) if w.comb_order == "io" else post.unsqueeze(-1)
    return {"out": EXACT(w, f, x, post, comb.double() * by_output, *rest)["out"]}


FAULTS = [
    Fault("comb transposed", given(comb=lambda t: t.mT), ("out", "dx"), several),
    Fault("comb transposed in dx alone", given(comb=lambda t: t.mT), ("dx",), several),
    Fault("comb of the token before", given(comb=lambda t: t.roll(1, 1)), ("out", "dx"),
          lambda w: w.tokens > 1),
    Fault("streams not mixed", given(comb=lambda t: torch.eye(t.size(-1)).expand_as(t)), ("out", "dx")),
    Fault("comb without its last input stream", given(x=lambda t: last_lost(t, -2)), ("out", "dcomb")),
    Fault("post applied twice", post_twice, ("out",)),
    Fault("post on the mixed streams too", post_on_streams, ("out",)),
    Fault("post left out", given(post=torch.ones_like), ("out", "df")),
    Fault("post of the stream before", given(post=lambda t: t.roll(1, -1)), ("out", "df"), several),
    Fault("the output of the sublayer left out", given(f=torch.zeros_like), ("out", "dpost"),
          lambda w: not w.has_bias),
    Fault("the bias left out", given(bias=torch.zeros_like), ("out", "dpost"), biased),
    Fault("the bias left out of dpost", without_bias_in_dpost, ("dpost",), biased),
    Fault("the bias added twice", given(bias=lambda t: 2 * t), ("out", "dpost"), biased),
    Fault("the bias rounded to bfloat16", given(bias=bfloat16), ("dpost",), biased),
    Fault("weights rounded to bfloat16", given(post=bfloat16, comb=bfloat16), WEIGHTED,
          lambda w: wide_weights(w) and mixes(w)),
    Fault("weights of TF32", given(post=tf32, comb=tf32), WEIGHTED,
          lambda w: not narrow(w) and wide_weights(w)),
    Fault("streams of TF32", given(x=tf32), ("out", "dcomb"), lambda w: not narrow(w)),
    Fault("streams rounded to bfloat16", given(x=lambda t: t.bfloat16().to(t.dtype)), ("out", "dcomb"),
          lambda w: w.dtype != torch.bfloat16),
    Fault("upstream gradient rounded to bfloat16", given(grad=lambda t: t.bfloat16().to(t.dtype)),
          ("df", "dx", "dpost", "dcomb"), lambda w: w.dtype != torch.bfloat16),
    Fault("products rounded before they are added", in_the_dtype_of_x("product"), WEIGHTED,
          lambda w: narrow(w) and mixes(w) and w.f_dtype is None),
    Fault("product and mixed streams rounded each by itself", in_the_dtype_of_x("mixed"), ("out",), narrow),
    Fault("a narrow accumulator", lambda w, *inputs: Steps(Arithmetic(
        partial=lambda t: t.to(w.dtype).float()))(w, *inputs), ("out",), lambda w: narrow(w) and mixes(w)),
    Fault("results truncated", Steps(last=truncated), WEIGHTED,
          lambda w: narrow(w) and w.values != "permutation" and w.f_dtype is None),
    Fault("dpost and dcomb of products rounded to bfloat16", Steps(product=bfloat16), SUMMED, wide_weights),
    Fault("dpost and dcomb in a bfloat16 accumulator", Steps(columns=functools.partial(
        columns.tiles, partial=bfloat16)), SUMMED, lambda w: wide_weights(w) and w.c > columns.TILE),
    Fault("dcomb transposed", one("dcomb", lambda t: t.mT), ("dcomb",), several),
    Fault("dcomb weighted by comb", lambda w, f, x, post, comb, *rest: {
        "dcomb": (EXACT(w, f, x, post, comb, *rest)["dcomb"].double() * comb).to(w.coefficients)},
          ("dcomb",)),
    Fault("dcomb never filled", one("dcomb", torch.zeros_like), ("dcomb",)),
    Fault("dpost and dcomb without the last column", summed(lambda t: t[..., :-1].sum(-1)), SUMMED),
    Fault("dpost and dcomb up to whole tiles", summed(lambda t: t[..., : t.size(-1) // 64 * 64].sum(-1)),
          SUMMED, lambda w: w.c % 64),
    Fault("dpost and dcomb with the last column twice", summed(lambda t: t.sum(-1) + t[..., -1]), SUMMED),
    Fault("dpost of the stream before", one("dpost", lambda t: t.roll(1, -1)), ("dpost",), several),
    Fault("df of the first output stream", given(post=lambda t: torch.cat(
        [t[..., :1], torch.zeros_like(t[..., 1:])], -1)), ("df",), several),
    Fault("df without the last output stream", given(grad=lambda t: last_lost(t, -2)), ("df", "dx")),
    Fault("dx the mean over output streams", given(comb=lambda t: torch.full_like(t, 1 / t.size(-1))),
          ("dx",)),
    Fault("dbias without the last token", over_tokens(lambda t: t[..., :-1].sum(-1)), ("dbias",), biased),
    Fault("dbias with the last token twice", over_tokens(lambda t: t.sum(-1) + t[..., -1]), ("dbias",),
          biased),
    Fault("dbias in a bfloat16 accumulator", Steps(tokens=functools.partial(
        columns.in_order, partial=bfloat16)), ("dbias",),
          lambda w: many_tokens(w) and (w.f_dtype or w.dtype) == torch.float32),
    Fault("dbias the mean over tokens", changed(lambda w, found: {"dbias": found["dbias"] / w.tokens}),
          ("dbias",), many_tokens),
    Fault("the last column never computed", one("out", last_lost), ("out",)),
    Fault("the last column of dx never computed", one("dx", last_lost), ("dx",)),
    Fault("a part of the column before", one("out", lambda t: t + 2.0**-5 * t.roll(1, -1)), ("out",)),
    *(
        Fault(name, damaged(damage), (), lambda w, name=name: w.batch > 1 or name != "stale output")
        for name, damage in DAMAGES.items()
    ),
]  # fmt: skip
