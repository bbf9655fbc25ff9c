"""Packed instructions (v_pk_*) and v_fma_mix, whose op_sel chooses what each operand means."""

from __future__ import annotations

import operator as op
from collections.abc import Callable

import numpy as np

from ci.emulator import arithmetic as fp
from ci.emulator import integers
from ci.emulator.registers import Operand, Waves, bits_of, constant, floating, half_of, sixteen, write
from ci.emulator.text import Instruction
from ci.emulator.vector import Action, Builder, maximum3, minimum3, understood

Array = np.ndarray
SIGN = np.uint32(0x8000_0000)
PACKED: dict[str, tuple[int, Callable[..., Array]]] = {
    "v_pk_add_f32": (2, lambda a, b: a + b),
    "v_pk_mul_f32": (2, lambda a, b: a * b),
    "v_pk_fma_f32": (3, fp.fma),
}
HALVES: dict[str, tuple[int, Callable[..., Array]]] = {
    "v_pk_max_f16": (2, fp.maximum_number),
    "v_pk_min_f16": (2, fp.minimum_number),
    "v_pk_maximum3_f16": (3, maximum3),
    "v_pk_minimum3_f16": (3, minimum3),
}
"""float16 in both halves of one register."""
INTEGERS: dict[str, tuple[int, Callable[..., Array]]] = {
    "v_pk_mul_lo_u16": (2, op.mul),
    "v_pk_add_u16": (2, op.add),
    "v_pk_sub_u16": (2, op.sub),
    "v_pk_lshlrev_b16": (2, lambda a, b: b << (a & np.uint16(15))),
    "v_pk_lshrrev_b16": (2, lambda a, b: b >> (a & np.uint16(15))),
}
"""16-bit integers in both halves of one register."""
MODIFIERS = {"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "encoding"}


def word(ins: Instruction, of: Operand, high: int, negative: int = 0) -> Callable[[Waves], Array]:
    """One register of a pair; a constant has no high register, except 0, whose both halves are 0."""
    if of.kind == "c":
        if high and constant(of.text, "f"):
            raise ValueError(f"{ins}: the high half of a constant is not known here")
        one = of
    else:
        one = Operand(of.kind, of.index + high, 1, of.text)
    read = bits_of(one, "f")
    return (lambda w: read(w) ^ SIGN) if negative else read


Read = Callable[[Instruction, Operand, int, int], Callable[[Waves], Array]]


def sources(ins: Instruction, operands: list[Operand], count: int, read: Read) -> tuple[list, list]:
    """How the sources of the low and of the high result are read: op_sel and op_sel_hi choose the halves."""
    understood(ins, MODIFIERS)
    if len(operands) != count + 1:
        raise ValueError(f"{ins}: {count} sources are needed")
    low, high = (
        [
            read(ins, of, half_of(ins, halves, k, default), half_of(ins, signs, k))
            for k, of in enumerate(operands[1:])
        ]
        for halves, default, signs in (("op_sel", 0, "neg_lo"), ("op_sel_hi", 1, "neg_hi"))
    )
    return low, high


def packed(ins: Instruction, operands: list[Operand]) -> Action:
    """Two float32 results, in a pair of registers."""
    count, function = PACKED[ins.op]
    low, high = sources(ins, operands, count, word)
    at = operands[0].index

    def run(w: Waves) -> None:
        # both before either is written: a source may be the destination
        one = function(*(read(w).view(np.float32) for read in low)).view(np.uint32)
        two = function(*(read(w).view(np.float32) for read in high)).view(np.uint32)
        write(w, at, one)
        write(w, at + 1, two)

    return run


def half(ins: Instruction, of: Operand, high: int, negative: int) -> Callable[[Waves], Array]:
    """One half of a register; for a constant it depends on its kind, and the high half is unknown."""
    if of.kind == "c" and high:
        raise ValueError(f"{ins}: the high half of a constant is not known here")
    kind = "s" if ins.op in INTEGERS else "h"
    read = sixteen(bits_of(of, kind), kind, high, of)
    return (lambda w: -read(w)) if negative else read


def packed_halves(ins: Instruction, operands: list[Operand]) -> Action:
    """Two results of 16 bits, in one register."""
    count, function = (HALVES | INTEGERS)[ins.op]
    both = sources(ins, operands, count, half)

    def run(w: Waves) -> None:
        one, two = (function(*(read(w) for read in reads)).view(np.uint16) for reads in both)
        write(w, operands[0].index, integers.halves(one, two))

    return run


def moved(ins: Instruction, operands: list[Operand]) -> Action:
    """v_pk_mov_b32: the low result from the first source, the high one from the second."""
    understood(ins, {"op_sel", "op_sel_hi"})
    to, a, b = operands
    low, high = word(ins, a, half_of(ins, "op_sel", 0, 0)), word(ins, b, half_of(ins, "op_sel", 1, 0))

    def run(w: Waves) -> None:
        one, two = low(w).copy(), high(w).copy()
        write(w, to.index, one)
        write(w, to.index + 1, two)

    return run


def mixed_source(ins: Instruction, of: Operand, position: int) -> Callable[[Waves], Array]:
    """float32, or where op_sel_hi is 1 the half of a register that op_sel names, as float16."""
    if not half_of(ins, "op_sel_hi", position):
        return floating(bits_of(of, "f"), of)
    half = sixteen(bits_of(of, "h"), "h", half_of(ins, "op_sel", position), of)
    return lambda w: half(w).astype(np.float32)


def mixed(ins: Instruction, operands: list[Operand]) -> Action:
    """v_fma_mix_f32, and mixlo, mixhi, which round that to float16, a half of the destination."""
    understood(ins, {"op_sel", "op_sel_hi"})
    to, *of = operands
    reads = [mixed_source(ins, o, k) for k, o in enumerate(of)]
    at = to.index
    half = {"v_fma_mixlo_f16": 0, "v_fma_mixhi_f16": 1}.get(ins.op)

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        if half is None:
            write(w, at, fp.fma(*values).view(np.uint32))
            return
        rounded = fp.fma(*values).astype(np.float16).view(np.uint16).astype(np.uint32)
        shift = np.uint32(16 * half)
        write(w, at, (w.v[at] & ~(np.uint32(0xFFFF) << shift)) | (rounded << shift))

    return run


TABLE: dict[str, Builder] = {
    **dict.fromkeys(PACKED, packed),
    **dict.fromkeys((*HALVES, *INTEGERS), packed_halves),
    "v_pk_mov_b32": moved,
    **dict.fromkeys(("v_fma_mix_f32", "v_fma_mixlo_f16", "v_fma_mixhi_f16"), mixed),
    **dict.fromkeys(("v_mad_mix_f32", "v_mad_mixlo_f16", "v_mad_mixhi_f16"), mixed),
}
