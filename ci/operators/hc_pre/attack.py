"""Bugs of hc_pre, each planted into a right implementation."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch

from ci.gate import columns, gate
from ci.gate.arithmetic import Arithmetic, keep_bits
from ci.gate.bugs import Bug, anywhere, at, edited, later
from ci.operators.hc_pre.steps import Steps, the_cpu_path
from helion_sinkhorn.ops.hc_pre.budget import RESULTS
from helion_sinkhorn.runtime.pieces import pieces

Change = Callable[[torch.Tensor], torch.Tensor]
MODEL, TOKENS, SINGLE, HALF, NARROW = (
    f"hc_pre_{name}" for name in ("model", "tokens", "fp32", "fp16", "signed")
)
ODD, PEAKED, WEIGHTS = "hc_pre_odd", "hc_pre_peaked_fp32", "hc_pre_narrow_weights"
ONE_ENTRY, ONE, THREE, FIVE, EIGHT, SIXTEEN = (
    f"hc_pre_{name}"
    for name in ("one_entry", "single", "three_streams", "five_streams", "eight_streams", "sixteen_streams")
)

right = the_cpu_path


def given(**change: Change) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        named = zip(("x", "pre", "dy"), inputs, strict=True)
        return right(w, *(change.get(name, lambda t: t)(t) for name, t in named))

    return run


def bug(name: str, run: gate.Run, *of: str, on: str = SINGLE, hidden: str = "") -> Bug:
    return Bug(name, on, run, of or RESULTS, hidden)


def stored(name: str, of: str, index, value: Change, on: str = SINGLE, hidden: str = "") -> Bug:
    """One result changed where it is written: at an index, to a function of the whole."""
    return Bug(name, on, later(right, of, at(index, value)), (of,), hidden)


def changed(name: str, of: str, change: Change, on: str = SINGLE, hidden: str = "") -> Bug:
    """One result changed as a whole."""
    return Bug(name, on, later(right, of, change), (of,), hidden)


def summed(total: Change) -> gate.Run:
    """dpre by another sum over the columns."""
    return Steps(columns=total)


def as_if_rows_had(length: int) -> Change:
    """Rows read at multiples of another length."""

    def change(t: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(t.numel() // t.size(-1)) * length
        places = rows[:, None] + torch.arange(t.size(-1))
        return t.reshape(-1)[places % t.numel()].view(t.shape)

    return change


def clamped(count: int) -> Change:
    """Padding that a mask should hide reads the last column, `count` times."""
    return lambda t: t.sum(-1) + count * t[..., -1]


def floored(w, t: torch.Tensor) -> torch.Tensor:
    near = t.to(w.dtype)
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def half_up(w, t: torch.Tensor) -> torch.Tensor:
    """Half a unit added, then cut: ties go up in size, as a cast by shift rounds."""
    return (t.contiguous().view(torch.int32) + 0x8000 & -0x10000).view(torch.float32)


def second_piece_by_the_first(w, x, pre, dy) -> gate.Results:
    """A piece of the tokens takes the weights of the one before it."""
    weights = pre.flatten(0, 1).clone()
    for before, piece in itertools.pairwise(pieces(len(weights), w.n * w.c)):
        weights[piece] = weights[before][: len(weights[piece])]
    return right(w, x, weights.view(pre.shape), dy)


BUGS = [
    bug("weights of the piece of tokens before", second_piece_by_the_first, "y", "dx", on=MODEL),
    *anywhere(right, SINGLE, "y", 2),
    *(
        b
        for b in anywhere(right, NARROW, "dx", 2)
        if any(word in b.name for word in ("lane", "line", "store", "corner"))
    ),
    *(b for b in anywhere(right, THREE, "dpre", 2) if "written" in b.name or "bits" in b.name),
    bug("tokens wrap at 256", given(x=lambda t: t[:, torch.arange(t.size(1)) % 256]), "y", "dpre", on=TOKENS),
    bug("the last token clamped to the one before", given(
        pre=lambda t: t[:, torch.arange(t.size(1)).clamp(max=t.size(1) - 2)]), "y", "dx"),
    stored("tokens beyond whole tiles 0", "y", (slice(None), slice(256, None)), lambda t: 0 * t[:, 256:],
           on=TOKENS),
    bug("rows at multiples of eight entries", given(x=as_if_rows_had(72)), "y", "dpre", on=ODD),
    bug("upstream rows at multiples of eight entries", given(dy=as_if_rows_had(72)), "dx", "dpre", on=ODD),
    bug("weights at multiples of four streams", given(pre=as_if_rows_had(4)), "y", "dx", on=THREE),
    bug("weights of 16 bits read as 32", given(pre=lambda t: t[..., ::2].repeat_interleave(2, -1)), "y",
        "dx", on=WEIGHTS),
    stored("the last odd entry of a row 0", "y", (..., -1), lambda t: 0 * t[..., -1], on=ODD),
    stored("the last odd entry of a row of dx 0", "dx", (..., -1), lambda t: 0 * t[..., -1], on=ODD),
    stored("columns beyond the first tile 0", "y", (..., slice(64, None)), lambda t: 0 * t[..., 64:]),
    stored("the second tile written twice", "y", (..., slice(128, 192)), lambda t: t[..., 64:128]),
    bug("the last column from the token behind", given(
        x=edited(lambda t: t[:, :-1, :, -1].copy_(t[:, 1:, :, -1].clone()))), "y", "dpre"),
    bug("streams of another layout, the stream last", given(
        x=lambda t: t.reshape(*t.shape[:-2], t.size(-1), t.size(-2)).mT.contiguous()), "y", "dpre"),
    bug("the last stream in place of padding", given(
        x=edited(lambda t: t[..., -1, :].mul_(2.0))), "y", on=THREE),
    bug("streams beyond four lost", given(x=edited(lambda t: t[..., 4:, :].zero_())), "y", "dpre", on=FIVE),
    bug("streams beyond eight lost", given(x=edited(lambda t: t[..., 8:, :].zero_())), "y", "dpre",
        on=SIXTEEN),
    bug("half of the streams twice", given(x=edited(lambda t: t[..., 4:, :].copy_(t[..., :4, :].clone()))),
        "y", "dpre", on=EIGHT),
    bug("weights of one stream ignored", given(pre=torch.ones_like), "y", "dx", on=ONE),
    bug("weights normalised", given(pre=lambda t: t / t.sum(-1, keepdim=True)), "y", "dx"),
    bug("weights without their sign", given(pre=torch.abs), "y", "dx", on=NARROW),
    bug("weights of the element before", given(pre=lambda t: t.roll(1, 0)), "y", "dx"),
    bug("weights of half precision", given(pre=lambda t: t.half().float()), "y", "dx"),
    bug("small weights 0", given(pre=lambda t: torch.where(t.abs() < 2.0**-8, 0.0, t)), "y", "dx", on=PEAKED),
    bug("small entries 0", given(x=lambda t: torch.where(t.abs() < 2.0**-11, 0.0, t)), "y",
        on=PEAKED),
    bug("entries clamped at 1024", given(x=lambda t: t.clamp(-1024.0, 1024.0)), "y", "dpre", on=PEAKED),
    bug("half precision through bfloat16", given(x=lambda t: t.bfloat16().half()), "y", "dpre", on=HALF),
    bug("products of half precision", Steps(product=lambda t: t.half().float()), "y", "dpre"),
    bug("an accumulator of half precision", Steps(Arithmetic(partial=lambda t: t.half().float())), "y"),
    bug("an accumulator of 16 bits", Steps(Arithmetic(partial=lambda t: keep_bits(t, 15))), "y", on=SIXTEEN),
    bug("rounded down at the store", Steps(last=floored), "y", "dx", on=MODEL),
    bug("ties away from zero at the store", Steps(last=half_up), "y", on=TOKENS,
        hidden="one in 2^16 float32 numbers is a tie"),
    bug("a product not rounded before it is added", Steps(Arithmetic(fused=True)), "y",
        hidden="one rounding less: nearer to the truth than the budget asks"),
    bug("upstream gradient of the first token for all", given(dy=lambda g: g[:, :1].expand_as(g)), "dx",
        "dpre"),
    bug("upstream gradient of the element before", given(dy=lambda g: g.roll(1, 0)), "dx", "dpre"),
    bug("upstream gradient ignored", given(dy=torch.ones_like), "dx", "dpre"),
    bug("dpre without its first tile", summed(lambda t: t[..., 64:].sum(-1)), "dpre"),
    bug("dpre with its first tile twice", summed(lambda t: t.sum(-1) + t[..., :64].sum(-1)), "dpre"),
    bug("dpre up to a multiple of 256", summed(lambda t: t[..., :512].sum(-1)), "dpre"),
    bug("dpre with padding that reads the last column", summed(clamped(5)), "dpre", on=ODD),
    bug("dpre without the last warp's part", summed(lambda t: t[..., : t.size(-1) * 3 // 4].sum(-1)), "dpre",
        on=MODEL),
    bug("dpre of every second column, doubled", summed(lambda t: 2 * t[..., ::2].sum(-1)), "dpre"),
    bug("dpre in parts of half precision", summed(functools.partial(
        columns.tiles, partial=lambda t: keep_bits(t, 10))), "dpre"),
    bug("dpre in parts of 16 bits", summed(functools.partial(columns.in_order, partial=lambda t: keep_bits(
        t, 15))), "dpre", on=MODEL),
    bug("dpre added in float64", summed(columns.wide), "dpre",
        hidden="fewer roundings: nearer to the truth than the budget asks"),
    changed("dpre the mean of the columns", "dpre", lambda t: t / 67, on=ODD),
    changed("dpre of the streams together", "dpre", lambda t: t.sum(-1, keepdim=True).expand_as(t).clone(),
            on=ONE_ENTRY),
    changed("dpre of neighbours exchanged", "dpre", lambda t: t[..., [1, 0, 3, 2]].contiguous()),
    changed("dx with the streams in reverse", "dx", lambda t: t.flip(-2)),
    changed("dx written with the stream last", "dx", lambda t: t.mT.reshape(t.shape)),
    stored("dx of the last stream never written", "dx", (..., -1, slice(None)), lambda t: 0 * t[..., -1, :],
           on=SIXTEEN),
    changed("y added to what was there", "y", lambda t: t + t.roll(1, 0)),
    changed("y off by 2^-12", "y", lambda t: t * (1 + 2.0**-12)),
    changed("dpre off by 2^-14", "dpre", lambda t: t * (1 + 2.0**-14)),
]  # fmt: skip
