"""Matrix instructions (MFMA): which lane holds which number, and how products are added up."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ci.emulator import arithmetic as fp
from ci.emulator.registers import LANES, Operand, Waves, bits_of, write
from ci.emulator.text import Instruction
from ci.emulator.vector import understood

Array = np.ndarray
Action = Callable[[Waves], None]
NAME = re.compile(r"v_mfma_f32_(16x16|32x32)x(\d+)_(f32|bf16|f16|bf16_1k)$")
KNOWN = {
    "v_mfma_f32_32x32x2_f32", "v_mfma_f32_16x16x4_f32",
    *(
        f"v_mfma_f32_{shape}_{kind}"
        for shape in ("32x32x16", "16x16x32", "32x32x8", "16x16x16")
        for kind in ("f16", "bf16")
    ),
}  # fmt: skip
STEP = 8
"""Products that CDNA3 adds at a time."""


def nearest_sum(a: Array, b: Array, c: Array) -> Array:
    """The exact sum rounded once: (w, m, k), (w, k, n), (w, m, n)."""
    return (a.astype(np.float64) @ b.astype(np.float64) + c).astype(np.float32)


def floored_sum(a: Array, b: Array, c: Array) -> Array:
    """Eight products at a time added to an accumulator that rounds down, as measured on CDNA3."""
    total = c
    for k in range(0, a.shape[-1], STEP):
        part = slice(k, k + STEP)
        exact = a[..., part].astype(np.float64) @ b[:, part].astype(np.float64) + total
        near = exact.astype(np.float32)
        total = np.where(near > exact, np.nextafter(near, np.float32(-np.inf)), near)
    return total


def chained_sum(a: Array, b: Array, c: Array) -> Array:
    """float32: a chain of fused multiply-adds over k."""
    for k in range(a.shape[-1]):
        c = fp.fma(a[..., k, None], b[:, None, k], c)
    return c


SUMS = {"nearest": nearest_sum, "floored": floored_sum}
"""Models of 16-bit matrix units."""


def layout(size: int, depth: int) -> tuple[Array, Array, Array, Array]:
    """(line, first k) of a lane's operand; (row, column) of its results, (number, lane)."""
    lane, per = np.arange(LANES), depth // (LANES // size)
    number = np.arange(size * size // LANES)[:, None]
    if size == 32:
        row = 8 * (number // 4) + 4 * (lane // 32) + number % 4
    else:
        row = 4 * (lane // 16) + number
    return lane % size, per * (lane // size), row, np.broadcast_to(lane % size, row.shape)


def numbers(w: Waves, of: Operand, per: int, kind: str) -> Array:
    """A lane's part of a matrix (waves, 64, per), as float32."""
    words = np.stack([w.v[of.index + k] for k in range(of.count)], -1)
    if kind == "f32":
        return words.view(np.float32)
    halves = words.view(np.uint16)[..., :per]
    return fp.from_bfloat16(halves) if kind.startswith("bf16") else halves.view(np.float16).astype(np.float32)


def multiply(ins: Instruction, operands: list[Operand]) -> Action:
    """D = A B + C."""
    understood(ins, set())
    shape, depth, kind = NAME.match(ins.op).groups()
    size, depth = int(shape[:2]), int(depth)
    line, first, row, column = layout(size, depth)
    per = depth // (LANES // size)
    to, a, b, c = operands
    constant = bits_of(c, "f") if c.kind == "c" else None

    def run(w: Waves) -> None:
        if not w.full:
            raise ValueError(f"{ins}: a matrix instruction with inactive lanes is not known here")
        waves = len(w.group)
        left, right = np.empty((waves, size, depth), np.float32), np.empty((waves, depth, size), np.float32)
        for matrix, of, turned in ((left, a, False), (right, b, True)):
            values = numbers(w, of, per, kind)
            for j in range(per):
                if turned:
                    matrix[:, first + j, line] = values[:, :, j]
                else:
                    matrix[:, line, first + j] = values[:, :, j]
        addend = np.zeros((waves, size, size), np.float32)
        if constant is not None:
            addend[:] = constant(w).view(np.float32)[..., None]
        else:
            for k in range(len(row)):
                addend[:, row[k], column[k]] = w.v[c.index + k].view(np.float32)
        total = (chained_sum if kind == "f32" else SUMS[w.world.products])(left, right, addend)
        for k in range(len(row)):
            write(w, to.index + k, total[:, row[k], column[k]].view(np.uint32))

    return run


TABLE = dict.fromkeys(KNOWN, multiply)
