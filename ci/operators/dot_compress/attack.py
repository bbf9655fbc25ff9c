"""Bugs of dot compress, each planted into a right implementation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16
from ci.gate.bugs import Bug, anywhere, as_if_contiguous, at, edited, elements_apart, later
from ci.operators.dot_compress.faults import Steps, carried, in_order, keep_bits
from ci.operators.dot_compress.truths import RESULTS, on_cpu
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload

TAIL, PRECISE, SINGLE = "dot_tail", "dot_precise_z", "dot_fp32"
ALL = ("out", "dx", "dy", "dz")


def right(w: DotWorkload, *inputs: torch.Tensor) -> gate.Results:
    """The CPU path."""
    return {name: on_cpu(w.parts, name, *inputs) for name in RESULTS}


def given(**change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Other inputs, by name."""

    def run(w, *inputs):
        names = ("x", "y", "grad", "z")[: len(inputs)]
        return right(w, *(change.get(name, lambda t: t)(t) for name, t in zip(names, inputs, strict=True)))

    return run


def stepwise(function: Callable[..., gate.Results]) -> gate.Run:
    """(out, dx, dy, dz) from (workload, float32 x, y, grad, z, carry)."""

    def run(w, x, y, grad, z=None):
        z = torch.zeros((), dtype=x.dtype) if z is None else z
        found = function(w, *(t.float() for t in (x, y, grad, z)), lambda t: carried(w, t))
        return {name: t.to(w.dtype) for name, t in found.items()}

    return run


def z_behind_the_rounding(w, x, y, grad, z, carry):
    b = carry(x.mT @ y) + z
    return {"out": x @ b}


def z_rounded_in_parts(w, x, y, grad, z, carry):
    half = x.size(1) // 2
    b = carry(carry(x[:, :half].mT @ y[:, :half]) + x[:, half:].mT @ y[:, half:] + z)
    return {"out": x @ b}


def z_in_every_block(w, x, y, grad, z, carry):
    """Added once for each of two ranges of rows."""
    return {"out": x @ carry(x.mT @ y + 2 * z)}


def without_low_in_gradient(w, x, y, grad, z, carry):
    b, db = x.mT @ y + z, carry(x.mT @ grad)
    return {"dx": grad @ b.to(w.dtype).float().mT + y @ db.mT}


def low_of_last_column(w, x, y, grad, z, carry):
    b = carry(x.mT @ y + z)
    b[..., -1] = b[..., -1].to(w.dtype).float()
    return {"out": x @ b}


def low_from_rounded(w, x, y, grad, z, carry):
    """The low part taken of the high one: nothing is left of it."""
    high = (x.mT @ y + z).to(w.dtype).float()
    return {"out": x @ (high + (high - high.to(w.dtype).float()))}


def low_in_float8(w, x, y, grad, z, carry):
    b = x.mT @ y + z
    high = b.to(w.dtype).float()
    return {"out": x @ (high + 0.75 * (b - high))}


def dz_behind_carry(w, x, y, grad, z, carry):
    return {"dz": x.mT @ grad + 2.0**-6 * z}


def dy_without_rounding(w, x, y, grad, z, carry):
    return {"dy": x @ (x.mT @ grad)}


def dx_of_rounded_terms(w, x, y, grad, z, carry):
    b, db = carry(x.mT @ y + z), carry(x.mT @ grad)
    return {"dx": (grad @ b.mT).to(w.dtype).float() + (y @ db.mT).to(w.dtype).float()}


def dx_with_exchanged(w, x, y, grad, z, carry):
    b, db = carry(x.mT @ y + z), carry(x.mT @ grad)
    return {"dx": y @ b.mT + grad @ db.mT}


def rows_from(first: int, last: int | None) -> Callable[[torch.Tensor], torch.Tensor]:
    """Only these rows of x take part in the sums."""

    def change(x):
        mask = torch.zeros_like(x)
        mask[:, first:last] = 1.0
        return x * mask

    return change


def shifted_rows(x: torch.Tensor) -> torch.Tensor:
    """The second half of the rows read one row late."""
    half = x.size(1) // 2
    return torch.cat([x[:, :half], x[:, half:].roll(1, 1)], 1)


def floored(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    near = t.to(w.dtype)
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def half_up(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """Half a unit added, then cut: ties go up in size, as a cast by shift rounds."""
    return (t.contiguous().view(torch.int32) + 0x8000 & -0x10000).view(torch.float32)


def bug(name: str, run: gate.Run, *of: str, on: str = TAIL, hidden: str = "") -> Bug:
    return Bug(name, on, run, of or ALL, hidden)


BUGS = [
    *anywhere(right, TAIL, "out", 2),
    bug("elements of x taken to be adjacent", as_if_contiguous(right, elements_apart)),
    *(
        b
        for b in anywhere(right, SINGLE, "dx", 2)
        if "lane" in b.name or "line" in b.name or "place" in b.name
    ),
    bug(
        "z transposed in its square part",
        given(z=edited(lambda z: z[:, :5].copy_(z[:, :5].mT.clone()))),
        "out",
        "dx",
    ),
    bug("z of the first element for all", given(z=lambda z: z[:1].expand_as(z)), "out", "dx"),
    bug("z of a precise call ignored", given(z=torch.zeros_like), "out", "dx", on=PRECISE),
    bug(
        "z added behind the rounding of b",
        stepwise(z_behind_the_rounding),
        "out",
        hidden="one rounding less: nearer to the truth than the budget asks",
    ),
    bug("sums rounded half way", stepwise(z_rounded_in_parts), "out"),
    bug("z in each of two ranges of rows", stepwise(z_in_every_block), "out"),
    bug("z truncated to 8 bits in float32", given(z=bfloat16), "out", on=SINGLE),
    bug("low part missing in dx", stepwise(without_low_in_gradient), "dx", on=PRECISE),
    bug("low part of the last column missing", stepwise(low_of_last_column), "out", on=PRECISE),
    bug("low part from what is rounded already", stepwise(low_from_rounded), "out", on=PRECISE),
    bug("three quarters of the low part", stepwise(low_in_float8), "out", on=PRECISE),
    bug("a part of z in dz", stepwise(dz_behind_carry), "dz"),
    bug(
        "dy without the rounding of db",
        stepwise(dy_without_rounding),
        "dy",
        hidden="one rounding less: nearer to the truth than the budget asks",
    ),
    bug("terms of dx rounded before they are added", stepwise(dx_of_rounded_terms), "dx"),
    bug("b and db exchanged in dx", stepwise(dx_with_exchanged), "dx"),
    bug("upstream gradient for y", given(y=lambda y: y.flip(-1)), "out"),
    bug("upstream gradient ignored", given(grad=torch.ones_like), "dx", "dy", "dz"),
    bug("upstream gradient of the element before", given(grad=lambda g: g.roll(1, 0)), "dx", "dy", "dz"),
    bug("rows from the second on", Steps(sum_rows=rows_from(1, None))),
    bug("rows up to a multiple of 64", Steps(sum_rows=rows_from(0, 128))),
    bug("rows up to a multiple of 64, of a thousand", Steps(sum_rows=rows_from(0, 960)), on=SINGLE),
    bug("second half of the rows read one late", Steps(sum_rows=shifted_rows)),
    bug("first tile of rows summed twice", Steps(sum_rows=edited(lambda x: x[:, :16].mul_(2.0)))),
    bug("last channel of x left out", given(x=edited(lambda x: x[..., -1].zero_())), "out", "dy"),
    bug("channels beyond 32 left out", given(x=edited(lambda x: x[..., 32:].zero_())), "out", "dy"),
    bug("last column of y taken for padding", given(y=edited(lambda y: y[..., -1].zero_())), "out", "dx"),
    bug(
        "columns in reverse within a pair",
        later(right, "out", at((..., slice(0, 4)), lambda t: t[..., [1, 0, 3, 2]])),
        "out",
    ),
    bug("intermediate of half precision", Steps(carry=lambda w, t: keep_bits(t, 9)), on=SINGLE),
    bug("intermediate of 14 bits", Steps(carry=lambda w, t: keep_bits(t, 13)), "out", "dx", "dy", on=SINGLE),
    bug(
        "accumulator of 16 bits",
        Steps(lambda a, b: in_order(a, b, add=lambda t: keep_bits(t.float(), 15))),
        on=SINGLE,
    ),
    bug("products of half precision", Steps(lambda a, b: a.half().float() @ b.half().float()), on=SINGLE),
    bug("rounded down at the store", Steps(last=floored)),
    bug("rounded down at the store, half precision", Steps(last=floored), on="dot_fp16"),
    bug(
        "ties away from zero at the store",
        Steps(last=half_up),
        on="dot_wide",
        hidden="one in 2^16 float32 numbers is a tie",
    ),
    bug("positions wrap at four", lambda w, *t: right(w, *(x[torch.arange(len(x)) % 4] for x in t)), on=TAIL),
    bug(
        "every element from row 0 of the next",
        later(right, "dy", at((slice(None), 0), lambda t: t.roll(-1, 0)[:, 0])),
        "dy",
    ),
    bug(
        "single-precision x in bfloat16 for db only",
        lambda w, x, y, g, z: right(w, x, y, g, z) | {"dz": right(replace(w), bfloat16(x), y, g, z)["dz"]},
        "dz",
        on=SINGLE,
    ),
]
