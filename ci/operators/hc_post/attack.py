"""Bugs of hc_post, each planted into a right implementation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import columns, gate
from ci.gate.arithmetic import Arithmetic, keep_bits
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.operators.hc_post.steps import NAMES, Steps, the_cpu_path
from helion_sinkhorn.runtime.pieces import pieces

Change = Callable[[torch.Tensor], torch.Tensor]
SINGLE, NARROW, BIAS, WIDE_BIAS = (
    f"hc_post_{name}" for name in ("fp32", "signed", "bias", "bias_fp32")
)  # fmt: skip
TOKENS, LAST, ODD, PERMUTATION = (
    f"hc_post_{name}" for name in ("tokens", "outputs_last", "odd", "permutation")
)
ONE, THREE, FIVE, EIGHT, SIXTEEN = (
    f"hc_post_{name}"
    for name in ("single", "three_streams", "five_streams", "eight_streams", "sixteen_streams")
)
PEAKED, WEIGHTS, HALF, OUTPUT = (
    f"hc_post_{name}" for name in ("peaked_fp32", "narrow_weights", "fp16", "wide_output")
)

MODEL = "hc_post_model"

right = the_cpu_path


def given(**change: Change) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        named = zip(NAMES, inputs, strict=False)
        return right(w, *(change.get(name, lambda t: t)(t) for name, t in named))

    return run


def bug(name: str, run: gate.Run, *of: str, on: str = SINGLE, hidden: str = "") -> Bug:
    return Bug(name, on, run, of, hidden)


def stored(name: str, of: str, index, value: Change, on: str = SINGLE, hidden: str = "") -> Bug:
    """One result changed where it is written: at an index, to a function of the whole."""
    return Bug(name, on, later(right, of, at(index, value)), (of,), hidden)


def changed(name: str, of: str, change: Change, on: str = SINGLE, hidden: str = "") -> Bug:
    """One result changed as a whole."""
    return Bug(name, on, later(right, of, change), (of,), hidden)


def as_if_rows_had(length: int) -> Change:
    """Rows read at multiples of another length."""

    def change(t: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(t.numel() // t.size(-1)) * length
        places = rows[:, None] + torch.arange(t.size(-1))
        return t.reshape(-1)[places % t.numel()].view(t.shape)

    return change


def other_order(w, *inputs) -> gate.Results:
    return right(replace(w, comb_order="io"), *inputs)


def other_order_in(*of: str) -> gate.Run:
    """comb_order ignored in some results."""
    return lambda w, *inputs: right(w, *inputs) | {name: other_order(w, *inputs)[name] for name in of}


def streams_in_place(w, f, x, post, comb, *rest) -> gate.Results:
    """New streams written over the old ones, which later ones then read."""
    x, out = x.float(), []
    by_output = comb if w.comb_order == "io" else comb.mT
    for o in range(w.n):
        new = (by_output[..., o, None] * x).sum(-2) + post[..., o, None] * f
        out.append(new)
        x = torch.cat([x[..., :o, :], new.unsqueeze(-2), x[..., o + 1 :, :]], -2)
    return {"out": torch.stack(out, -2).to(w.dtype)}


def df_from_rounded_dx(w, *inputs) -> gate.Results:
    """df as if comb were the weights of the sublayer too."""
    found = right(w, *inputs)
    return found | {"df": found["dx"].sum(-2)}


def dbias_of_new(w, *inputs) -> gate.Results:
    """The gradient of the bias from the upstream gradient, without post."""
    return {"dbias": inputs[4].float().sum((1, 2)).unsqueeze(1)}


def rounded_to(dtype: torch.dtype) -> Change:
    return lambda t: t.to(dtype).to(t.dtype)


def floored(w, t: torch.Tensor) -> torch.Tensor:
    near = t.to(w.dtype)
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def of_kind(bugs: list[Bug], *words: str) -> list[Bug]:
    return [b for b in bugs if any(word in b.name for word in words)]


def second_piece_by_the_first(w, f, x, post, comb, *rest) -> gate.Results:
    """A piece of the tokens takes the weights of the one before it."""
    post, comb = (t.flatten(0, 1).clone() for t in (post, comb))
    for weights in (post, comb):
        for before, piece in itertools.pairwise(pieces(len(weights), w.n * w.c)):
            weights[piece] = weights[before][: len(weights[piece])]
    return right(w, f, x, *(t.unflatten(0, f.shape[:2]) for t in (post, comb)), *rest)


BUGS = [
    bug("weights of the piece of tokens before", second_piece_by_the_first, "out", "df", on=MODEL),
    *anywhere(right, SINGLE, "out", 4),
    *of_kind(anywhere(right, NARROW, "dx", 4), "lane", "line", "store", "corner"),
    *of_kind(anywhere(right, THREE, "dcomb", 4), "written", "bits"),
    *of_kind(anywhere(right, BIAS, "dbias", 4), "written", "bits"),
    bug("comb_order ignored", other_order, "out", "dx", "dcomb", on=LAST),
    bug("comb_order ignored in the forward", other_order_in("out"), "out", on=LAST),
    bug("comb_order ignored in dcomb", other_order_in("dcomb"), "dcomb", on=LAST),
    bug("comb_order ignored in dx", other_order_in("dx"), "dx", on=LAST),
    bug("comb transposed, a permutation", given(comb=lambda t: t.mT.contiguous()), "out", "dx",
        on=PERMUTATION),
    bug("comb made symmetric", given(comb=lambda t: (t + t.mT) / 2), "out", "dx"),
    bug("comb of one row for all", given(comb=lambda t: t[..., :1, :].expand_as(t).contiguous()), "out"),
    bug("comb with its columns normalised", given(comb=lambda t: t / t.sum(-2, keepdim=True)), "out"),
    bug("comb at multiples of four streams", given(comb=lambda t: as_if_rows_had(4)(t)), "out", "dx",
        on=THREE),
    bug("post at multiples of four streams", given(post=as_if_rows_had(4)), "out", "df", on=THREE),
    bug("post of the token before", given(post=lambda t: t.roll(1, 1)), "out", "df"),
    bug("post of a single stream ignored", given(post=torch.ones_like), "out", "df", on=ONE),
    bug("comb of a single stream ignored", given(comb=torch.ones_like), "out", "dx", on=ONE),
    bug("new streams written over the old ones", streams_in_place, "out"),
    bug("streams beyond four lost", given(x=edited(lambda t: t[..., 4:, :].zero_())), "out", "dcomb",
        on=FIVE),
    bug("streams beyond eight lost", given(x=edited(lambda t: t[..., 8:, :].zero_())), "out", "dcomb",
        on=SIXTEEN),
    bug("upstream streams beyond eight lost", given(grad=edited(lambda t: t[..., 8:, :].zero_())), "dx",
        "df", on=SIXTEEN),
    bug("half of the streams twice", given(x=edited(lambda t: t[..., 4:, :].copy_(t[..., :4, :].clone()))),
        "out", "dcomb", on=EIGHT),
    bug("tokens wrap at 256", given(x=lambda t: t[:, torch.arange(t.size(1)) % 256]), "out", "dcomb",
        on=TOKENS),
    bug("the last token clamped to the one before", given(
        comb=lambda t: t[:, torch.arange(t.size(1)).clamp(max=t.size(1) - 2)]), "out", "dx"),
    stored("tokens beyond whole tiles 0", "df", (slice(None), slice(256, None)), lambda t: 0 * t[:, 256:],
           on=TOKENS),
    bug("rows at multiples of eight entries", given(x=as_if_rows_had(72)), "out", "dcomb", on=ODD),
    bug("rows of f at multiples of eight entries", given(f=as_if_rows_had(72)), "out", "dpost", on=ODD),
    stored("the last odd entry of a row 0", "out", (..., -1), lambda t: 0 * t[..., -1], on=ODD),
    stored("columns beyond the first tile 0", "dx", (..., slice(64, None)), lambda t: 0 * t[..., 64:]),
    stored("the second tile of df written twice", "df", (..., slice(128, 192)), lambda t: t[..., 64:128]),
    bug("f of the element before", given(f=lambda t: t.roll(1, 0)), "out", "dpost"),
    bug("f with the last column of the token behind", given(
        f=edited(lambda t: t[:, :-1, -1].copy_(t[:, 1:, -1].clone()))), "out", "dpost"),
    bug("f of float32 through bfloat16", given(f=rounded_to(torch.bfloat16)), "dpost", on=OUTPUT),
    changed("df of float32 through bfloat16", "df", rounded_to(torch.bfloat16), on=OUTPUT),
    bug("bias of the column before", given(bias=lambda t: t.roll(1, -1)), "out", "dpost", on=BIAS),
    bug("bias on the first stream alone", lambda w, f, x, post, comb, grad, bias: right(
        w, f, x, post, comb, grad, bias) | {"out": right(w, f, x, torch.cat([0 * post[..., :1], post[
            ..., 1:]], -1), comb, grad, 0 * bias)["out"]}, "out", on=BIAS),
    bug("bias without post", lambda w, f, x, post, comb, grad, bias: {"out": (right(
        w, f, x, post, comb, grad, 0 * bias)["out"].float() + bias[:, None, None]).to(w.dtype)}, "out",
        on=WIDE_BIAS),
    bug("bias past the first tile left out", given(bias=edited(lambda t: t[..., 64:].zero_())), "out",
        "dpost", on=BIAS),
    bug("bias in half precision", given(bias=rounded_to(torch.float16)), "dpost", on=WIDE_BIAS),
    bug("dbias from the upstream gradient", dbias_of_new, "dbias", on=BIAS),
    bug("dbias without the first token", Steps(tokens=lambda t: t[..., 1:].sum(-1)), "dbias", on=BIAS),
    bug("dbias up to a multiple of 32 tokens", Steps(tokens=lambda t: t[..., :32].sum(-1)), "dbias",
        on=BIAS),
    bug("dbias in parts of half precision", Steps(tokens=functools.partial(
        columns.in_order, partial=lambda t: keep_bits(t, 10))), "dbias", on=WIDE_BIAS),
    bug("dbias of df as it was rounded", lambda w, *inputs: {
        "dbias": right(w, *inputs)["df"].float().sum(1, keepdim=True)}, "dbias", on=BIAS),
    changed("dbias of the element before added", "dbias",
            edited(lambda t: t[1:].add_(t[:-1].clone())), on=BIAS),
    bug("df from dx", df_from_rounded_dx, "df"),
    bug("df unweighted", given(post=torch.ones_like), "df"),
    bug("dx from the new streams' own weights", given(comb=lambda t: torch.diag_embed(t.diagonal(
        dim1=-2, dim2=-1))), "dx"),
    bug("upstream gradient of the first token for all", given(grad=lambda g: g[:, :1].expand_as(g)), "df",
        "dx", "dpost", "dcomb"),
    bug("upstream gradient of the first stream for all", given(
        grad=lambda g: g[..., :1, :].expand_as(g)), "df", "dx", "dpost", "dcomb"),
    bug("upstream gradient of the stream before", given(grad=lambda g: g.roll(1, -2)), "df", "dx", "dpost",
        "dcomb", on=PERMUTATION),
    bug("upstream gradient ignored", given(grad=torch.ones_like), "df", "dx", "dpost", "dcomb"),
    bug("dpost and dcomb without their first tile", Steps(columns=lambda t: t[..., 64:].sum(-1)), "dpost",
        "dcomb"),
    bug("dpost and dcomb with the first tile twice", Steps(columns=lambda t: t.sum(-1) + t[..., :64].sum(
        -1)), "dpost", "dcomb"),
    bug("dpost and dcomb with padding that reads the last column", Steps(
        columns=lambda t: t.sum(-1) + 5 * t[..., -1]), "dpost", "dcomb", on=ODD),
    bug("dpost and dcomb of every second column, doubled", Steps(columns=lambda t: 2 * t[..., ::2].sum(-1)),
        "dpost", "dcomb"),
    bug("dpost and dcomb in parts of half precision", Steps(columns=functools.partial(
        columns.tiles, partial=lambda t: keep_bits(t, 10))), "dpost", "dcomb"),
    bug("dpost and dcomb added in float64", Steps(columns=columns.wide), "dpost", "dcomb",
        hidden="fewer roundings: nearer to the truth than the budget asks"),
    bug("dpost and dcomb of products of TF32", Steps(product=lambda t: keep_bits(t, 10)), "dpost", "dcomb"),
    changed("dcomb of the streams in reverse", "dcomb", lambda t: t.flip(-1)),
    changed("dcomb of the diagonal alone", "dcomb", lambda t: torch.diag_embed(t.diagonal(dim1=-2, dim2=-1))),
    changed("dcomb off by 2^-14", "dcomb", lambda t: t * (1 + 2.0**-14)),
    changed("dpost of all streams together", "dpost", lambda t: t.sum(-1, keepdim=True).expand_as(t).clone()),
    bug("weights of 16 bits read as 32", given(post=lambda t: t[..., ::2].repeat_interleave(2, -1)), "out",
        "df", on=WEIGHTS),
    bug("weights of half precision", given(comb=rounded_to(torch.float16)), "out", "dx"),
    bug("small weights 0", given(comb=lambda t: torch.where(t.abs() < 2.0**-8, 0.0, t)), "out", "dx",
        on=PEAKED),
    bug("entries clamped at 1024", given(x=lambda t: t.clamp(-1024.0, 1024.0)), "out", "dcomb", on=PEAKED),
    bug("half precision through bfloat16", given(x=lambda t: t.bfloat16().half()), "out", "dcomb", on=HALF),
    bug("products of half precision", Steps(product=rounded_to(torch.float16)), "out", "df", "dx"),
    bug("an accumulator of 16 bits", Steps(Arithmetic(partial=lambda t: keep_bits(t, 15))), "out",
        on=SIXTEEN),
    bug("the mixed streams rounded before the output is added", Steps(mixed=rounded_to(torch.bfloat16)),
        "out", on=NARROW),
    bug("rounded down at the store", Steps(last=floored), "out", "dx", on=NARROW),
    bug("products not rounded before they are added", Steps(Arithmetic(fused=True)), "out", "df", "dx",
        hidden="one rounding less: nearer to the truth than the budget asks"),
    changed("new streams added to the old ones", "out", lambda t: t + t.roll(1, 0)),
    changed("new streams with the stream last", "out", lambda t: t.mT.reshape(t.shape)),
    changed("new streams off by 2^-12", "out", lambda t: t * (1 + 2.0**-12)),
]  # fmt: skip
