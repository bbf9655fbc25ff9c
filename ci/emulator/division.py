"""The steps of an exact float32 division: v_div_scale_f32, v_div_fmas_f32 and v_div_fixup_f32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ci.emulator import arithmetic as fp
from ci.emulator.registers import VCC, Operand, Waves, source, unpacked, write, write_mask
from ci.emulator.text import Instruction
from ci.emulator.vector import Action, understood

Array = np.ndarray
SMALLEST = 2.0**-126


def exponent(a: Array) -> Array:
    """The biased exponent of float32."""
    return (np.ascontiguousarray(a).view(np.uint32) >> np.uint32(23)).astype(np.int32) & 255


def scale(ins: Instruction, operands: list[Operand]) -> Action:
    """A numerator or denominator scaled by 2^64 so that no step of the division leaves the range of
    float32.
    """
    understood(ins, set())
    to, out, *of = operands
    reads = [source(ins, o, "f", k) for k, o in enumerate(of)]

    def run(w: Waves) -> None:
        a, denominator, numerator = (np.broadcast_to(read(w), w.active.shape) for read in reads)
        inverse = 1 / denominator.astype(np.float64)
        quotient = np.abs(numerator.astype(np.float64) * inverse)
        is_denominator = a == denominator
        up, down = fp.ldexp(a, np.int32(64)), fp.ldexp(a, np.int32(-64))
        tiny_inverse = np.abs(inverse) < 2.0**-1022
        tiny_quotient = (quotient < SMALLEST) & (quotient > 0)
        cases = [
            ((numerator == 0) | (denominator == 0), np.float32(np.nan), False),
            (exponent(numerator) - exponent(denominator) >= 96, np.where(is_denominator, up, a), True),
            ((np.abs(denominator) < SMALLEST), up, False),
            (tiny_inverse & tiny_quotient, np.where(is_denominator, up, a), True),
            (tiny_inverse, down, False),
            (tiny_quotient, np.where(a == numerator, up, a), True),
            (exponent(numerator) <= 23, up, False),
        ]
        holds = [case for case, _, _ in cases]
        write(
            w,
            to.index,
            np.select(holds, [value for _, value, _ in cases], a).astype(np.float32).view(np.uint32),
        )
        write_mask(w, out.index, np.select(holds, [np.full(a.shape, flag) for _, _, flag in cases], False))

    return run


def scaled_fma(ins: Instruction, operands: list[Operand]) -> Action:
    """A fused multiply-add that takes the scale back in lanes that v_div_scale flagged.

    The documents' pseudocode scales by 2^32, which undoes neither scale: 2^64 where the quotient is large and
    2^-64 where it is small is what makes the division right.
    """
    understood(ins, set())
    to, *of = operands
    reads = [source(ins, o, "f", k) for k, o in enumerate(of)]

    def run(w: Waves) -> None:
        residual, inverse, quotient = (np.broadcast_to(read(w), w.active.shape) for read in reads)
        fused = fp.fma(residual, inverse, quotient)
        scaled = fp.ldexp(fused, np.where(exponent(quotient) > 127, 64, -64))
        flagged = unpacked(w.s[VCC : VCC + 2])
        write(w, to.index, np.where(flagged, scaled, fused).view(np.uint32))

    return run


def fixed(ins: Instruction, operands: list[Operand]) -> Action:
    """The quotient, or what IEEE 754 says for zeros, infinities and NaN."""
    understood(ins, set())
    to, *of = operands
    reads = [source(ins, o, "f", k) for k, o in enumerate(of)]

    def run(w: Waves) -> None:
        quotient, denominator, numerator = (np.broadcast_to(read(w), w.active.shape) for read in reads)
        sign = np.where(np.signbit(denominator) ^ np.signbit(numerator), np.float32(-1), np.float32(1))
        special = ~np.isfinite(denominator) | ~np.isfinite(numerator) | (denominator == 0) | (numerator == 0)
        corrected = np.where(special, numerator / denominator, np.abs(quotient) * sign)
        write(w, to.index, corrected.astype(np.float32).view(np.uint32))

    return run


TABLE: dict[str, Callable[[Instruction, list[Operand]], Action]] = {
    "v_div_scale_f32": scale, "v_div_fmas_f32": scaled_fma, "v_div_fixup_f32": fixed,
}  # fmt: skip
