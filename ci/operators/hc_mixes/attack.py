"""Bugs of hc_mixes, each planted into a right implementation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16, keep_bits
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.gate.products import in_order, plain, to_bfloat16
from ci.operators.hc_mixes.faults import cpu_path
from ci.operators.hc_mixes.steps import (
    DEPTH,
    TILE,
    Product,
    Steps,
    mean_square,
    norm_factor,
    of_parts,
    reciprocal_norm,
    tf32,
)
from helion_sinkhorn.lab.mixes.budget import RESULTS

ODD, SINGLE, HALF, LONG = "mixes_odd", "mixes_odd_fp32", "mixes_fp16", "mixes_long"
HEAD, SIXTEEN, OUTSIDE, TINY, ZERO = (
    "mixes_head", "mixes_sixteen_streams", "mixes_eps_outside", "mixes_tiny", "mixes_zero_token",
)  # fmt: skip
GRADIENTS = ("dx", "dfn")

right = cpu_path


def call(**change) -> gate.Run:
    """A call with other options."""
    return lambda w, *t: right(replace(w, **{k: v(w) if callable(v) else v for k, v in change.items()}), *t)


def given(**change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        names = ("x", "dmixes", "fn")
        return right(w, *(change.get(n, lambda t: t)(t) for n, t in zip(names, inputs, strict=True)))

    return run


def only(run: gate.Run, *of: str) -> gate.Run:
    """Some results of a wrong implementation, the others right."""

    def some(w, *inputs):
        wrong = run(w, *inputs)
        return right(w, *inputs) | {name: wrong[name] for name in of}

    return some


def bug(name: str, run: gate.Run, *of: str, on: str = ODD, hidden: str = "") -> Bug:
    return Bug(name, on, run, of or RESULTS, hidden)


def stored(name: str, of: str, index, value, on: str = ODD, hidden: str = "") -> Bug:
    """One result changed where it is written: at an index, to a function of the whole."""
    return Bug(name, on, later(right, of, at(index, value)), (of,), hidden)


def over(terms: Callable[[int], torch.Tensor]) -> Product:
    """A product over the terms of these numbers, some left out or taken twice."""

    def product(a, b):
        k = terms(a.size(-1))
        return plain(a[..., k], b[..., k, :])

    return product


def kept(*gone: slice) -> Product:
    """Terms without these."""

    def terms(count):
        there = torch.ones(count, dtype=torch.bool)
        for part in gone:
            there[part] = False
        return there.nonzero()[:, 0]

    return over(terms)


def again(part: slice) -> Product:
    """Terms with these twice."""
    return over(lambda count: torch.cat([torch.arange(count), torch.arange(count)[part]]))


def clamped(count: int) -> torch.Tensor:
    """The last tile's columns beyond the end are the last one, unmasked."""
    return torch.arange(-(-count // TILE) * TILE).clamp(max=count - 1)


def of_middle_part(a, b):
    """The second bfloat16 part of fn left out: the first, and what the third has."""
    high, low = of_parts(1)(b), b - of_parts(2)(b)
    return plain(a, high + low)


def low_part_twice(a, b):
    return plain(a, b + (b - of_parts(2)(b)) * 256)


def of_first_tile(w, x):
    return x[..., :TILE].square().mean(-1, keepdim=True)


def floored(t: torch.Tensor) -> torch.Tensor:
    """To bfloat16, down."""
    near = t.bfloat16()
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def rounded_by(change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """dx of float32, rounded in another way."""
    return Steps(last=lambda w, t: change(t).float())


def norm_of_next(w, q):
    return reciprocal_norm(w, q.roll(-1, 1))


BUGS = [
    *anywhere(right, ODD, "dx", 1),
    *(b for b in anywhere(right, SINGLE, "mixes", 1) if "written" in b.name or "lane" in b.name),
    *(b for b in anywhere(right, LONG, "dfn", 1) if "bits" in b.name or "stale" in b.name),
    bug("eps_outside ignored", call(eps_outside=False), on=OUTSIDE),
    bug("eps_outside ignored in dx", only(call(eps_outside=False), "dx"), "dx", on=OUTSIDE),
    bug("eps on both sides of the root", Steps(norm=lambda w, q: 1 / ((q + w.norm_eps).sqrt() + w.norm_eps)),
        on=OUTSIDE),
    bug("eps of the root's first power", call(norm_eps=lambda w: w.norm_eps**0.5), on=TINY),
    bug("eps below half precision's range is 0", call(norm_eps=0.0), on=TINY),
    bug("a root without eps for a token of zeros", Steps(
        norm=lambda w, q: torch.where(q > 0, reciprocal_norm(w, q), 0.0)), "dx", on=ZERO),
    bug("eps added to every tile's squares", Steps(norm=lambda w, q: 1 / (q + 2 * w.norm_eps).sqrt()),
        on="mixes_eps_inside"),
    bug("squares of the first tile of columns alone", Steps(mean=of_first_tile)),
    bug("squares of a masked tail counted", Steps(mean=lambda w, x: mean_square(w, x[..., clamped(
        x.size(-1))]))),
    bug("squares divided by a power of two", Steps(
        mean=lambda w, x: x.square().sum(-1, keepdim=True) / 1024)),
    bug("squares in half precision", Steps(mean=lambda w, x: mean_square(w, x).half().float()), on=SINGLE),
    bug("squares in bfloat16 partial sums", Steps(mean=lambda w, x: in_order(
        x.unsqueeze(-2), x.unsqueeze(-1), DEPTH, to_bfloat16)[..., 0] / x.size(-1))),
    bug("the norm of the next token", Steps(norm=norm_of_next)),
    bug("the norm of the first token for all", Steps(
        norm=lambda w, q: reciprocal_norm(w, q[:, :1].expand_as(q)))),
    bug("a reciprocal root of 14 bits", Steps(norm=lambda w, q: keep_bits(reciprocal_norm(w, q), 14)),
        on=SINGLE),
    bug("products without the second part of fn", Steps(z=of_middle_part), "mixes"),
    bug("the third part of fn added where the second belongs", Steps(z=low_part_twice), "mixes"),
    bug("products of fn in TF32", Steps(fn=tf32), "mixes"),
    bug("products of x in TF32", Steps(x=tf32), "mixes", "dfn", on=SINGLE),
    bug("half precision of x through bfloat16", given(x=lambda t: t.bfloat16().half()), on=HALF),
    bug("fn in half precision", given(fn=lambda t: t.half().float()), "mixes", "dx"),
    bug("one row of fn in bfloat16", given(fn=edited(lambda t: t[:, 3].copy_(bfloat16(t[:, 3])))), "mixes",
        "dx"),
    bug("the last row of fn is 0", given(fn=edited(lambda t: t[:, -1].zero_())), "mixes", on=SIXTEEN),
    bug("the last column of fn is 0", given(fn=edited(lambda t: t[..., -1].zero_())), "mixes", "dx"),
    bug("rows of fn beyond 16 repeat", given(fn=lambda t: t[:, torch.arange(t.size(1)) % 16]), "mixes", "dx",
        on=SIXTEEN),
    bug("columns wrap at 256", given(x=lambda t: t.flatten(2)[..., torch.arange(
        t[0, 0].numel()) % 256].view(t.shape)), "mixes", "dfn"),
    bug("streams in reverse", given(x=lambda t: t.flip(2)), "mixes", "dfn"),
    bug("one stream of the token before", given(x=edited(
        lambda t: t[:, 1:, 1].copy_(t[:, :-1, 1].clone()))), "mixes"),
    bug("tokens wrap at 32", given(x=lambda t: t[:, torch.arange(t.size(1)) % 32]), "mixes", "dx", on=LONG),
    bug("the last token clamped to the one before", given(x=lambda t: t[:, torch.arange(t.size(1)).clamp(
        max=t.size(1) - 2)]), "mixes", on=LONG),
    bug("one tile of columns left out", Steps(z=kept(slice(TILE, 2 * TILE))), "mixes"),
    bug("the last tile of columns twice", Steps(z=again(slice(-TILE, None))), "mixes"),
    bug("masked columns read as the last one", Steps(z=over(clamped)), "mixes"),
    bug("the first column of every tile left out", Steps(z=kept(slice(0, None, TILE))), "mixes"),
    bug("partial sums of splits in bfloat16", Steps(
        z=functools.partial(in_order, depth=256, add=to_bfloat16)), "mixes", on=SIXTEEN),
    bug("accumulator of half precision's bits", Steps(z=functools.partial(in_order, depth=DEPTH,
        add=lambda t: keep_bits(t.float(), 10))), "mixes"),
    bug("upstream gradient in half precision", given(dmixes=lambda t: t.half().float()), *GRADIENTS),
    bug("upstream gradient of the last row ignored", given(dmixes=edited(lambda t: t[..., -1].zero_())),
        *GRADIENTS),
    bug("upstream gradient of the token before", given(dmixes=lambda t: t.roll(1, 1)), *GRADIENTS),
    bug("dx of the product alone", Steps(factor=lambda *a: torch.zeros(())), "dx"),
    bug("dx with the norm's term of the other sign", Steps(factor=lambda *a: -norm_factor(*a)), "dx"),
    bug("the norm's term over C, not n C", Steps(
        factor=lambda w, q, r, size: norm_factor(w, q, r, size) * w.n), "dx"),
    bug("the norm's term of the first row alone", Steps(
        along=lambda dmixes, mixes, z: (dmixes * mixes)[..., :1]), "dx"),
    bug("the norm's term from mixes in bfloat16", Steps(
        along=lambda dmixes, mixes, z: (dmixes * bfloat16(mixes)).sum(-1, keepdim=True)), "dx", on=SINGLE),
    bug("0 / 0 in dx of a token of zeros", Steps(factor=lambda w, q, r, size: -r / q.sqrt() / size), "dx",
        on="mixes_zero_outside"),
    bug("rows of fn in the gradient one further", Steps(fn_back=lambda t: t.roll(1, -2)), "dx"),
    bug("dx scaled by mixes' norm of the next token", only(Steps(norm=norm_of_next), "dx"), "dx"),
    bug("the last row dropped from dx", Steps(product=kept(slice(-1, None))), "dx", on=HEAD),
    bug("rows padded to 16 read beyond", Steps(product=again(slice(-1, None))), "dx"),
    bug("dfn without a tile of tokens", Steps(tokens=kept(slice(64, 128))), "dfn", on=LONG),
    bug("dfn without token 0", Steps(tokens=kept(slice(1))), "dfn", on=LONG),
    bug("dfn up to a multiple of 32 tokens", Steps(tokens=kept(slice(256, None))), "dfn", on=LONG),
    bug("masked tokens counted as the last one", Steps(tokens=again(slice(-1, None))), "dfn", on=LONG),
    bug("a program's partial sum added twice", Steps(tokens=again(slice(64, 128))), "dfn", on=LONG),
    bug("partial sums of dfn in bfloat16", Steps(
        tokens=functools.partial(in_order, depth=64, add=to_bfloat16)), "dfn", on=LONG),
    bug("dfn of the element before added", later(right, "dfn", edited(
        lambda t: t[1:].add_(t[:-1].clone()))), "dfn", on=LONG),
    bug("dfn not scaled by r", Steps(r_of_dfn=torch.ones_like), "dfn"),
    bug("dfn from g in two parts", Steps(g=of_parts(2)), "dfn", on=LONG),
    stored("dfn of the last columns never added", "dfn", (..., slice(-1, None)), lambda t: 0 * t[..., -1:]),
    stored("one row of dfn of the row before", "dfn", (slice(None), 2), lambda t: t[:, 1]),
    stored("mixes of the last row 0", "mixes", (..., -1), lambda t: 0 * t[..., -1], on=SIXTEEN),
    stored("mixes of two rows exchanged", "mixes", (..., slice(2)), lambda t: t[..., [1, 0]]),
    stored("mixes low by 2^-18 everywhere", "mixes", (...,), lambda t: t * (1 - 2.0**-18)),
    stored("a stale tile of 16 tokens", "mixes", (slice(None), slice(16, 32)), lambda t: t[:, :16]),
    stored("dx of a stream with the other sign", "dx", (..., slice(211, 422)), lambda t: -t[..., 211:422]),
    bug("rounded down at the store", rounded_by(floored), "dx"),
    bug("dx of half precision through bfloat16", rounded_by(bfloat16), "dx", on=HALF),
    bug("dx added to what a stale buffer holds", later(right, "dx", lambda t: t + t.roll(1, 0)), "dx"),
]  # fmt: skip
