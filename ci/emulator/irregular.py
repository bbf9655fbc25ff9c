"""Vector instructions with masks, carries, several destinations or lanes of their own."""

from __future__ import annotations

import operator as op
from collections.abc import Callable

import numpy as np

from ci.emulator import lanes
from ci.emulator.registers import TYPES, Operand, Waves, bits_of, source, write, write_mask, write_scalar
from ci.emulator.text import Instruction
from ci.emulator.vector import MODIFIERS, Action, Builder, stored, understood

Array = np.ndarray
U32, U64 = np.uint32, np.uint64
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": op.eq, "lt": op.lt, "le": op.le, "gt": op.gt, "ge": op.ge, "ne": op.ne,
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b), "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip
SUFFIXES = {"f32": "f", "i32": "i", "u32": "u", "i64": "I", "u64": "U", "u16": "s", "i16": "S", "f16": "h"}


def in_classes(a: Array, chosen: Array) -> Array:
    """Whether a float32 is of a class whose bit is set, from 0: signalling and quiet NaN, -inf, -normal,
    -subnormal, -0, +0, +subnormal, +normal, +inf."""
    bits = np.ascontiguousarray(a, np.float32).view(U32)
    size, negative = bits & U32(0x7FFF_FFFF), bits >> U32(31) != 0
    # 0 of zero, 1 of subnormals, 2 of normal numbers, 3 of infinity
    rank = np.searchsorted(np.array([1, 1 << 23, 0x7F80_0000], U32), size, side="right")
    number = np.where(negative, 5 - rank, 6 + rank)
    nan = np.where(size & U32(1 << 22), 1, 0)
    return (chosen >> np.where(size > 0x7F80_0000, nan, number).astype(U32)) & U32(1) != 0


COMPARE = {
    f"v_cmp_{name}_{suffix}": (2 * kind, function)
    for name, function in COMPARISONS.items()
    for suffix, kind in SUFFIXES.items()
    if kind in "fh" or name in ("eq", "ne", "lt", "le", "gt", "ge")
} | {"v_cmp_class_f32": ("fu", in_classes)}
"""Opcode -> types of both sources, function."""
CARRIES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_co_u32": lambda a, b, c: a + b,
    "v_addc_co_u32": lambda a, b, c: a + b + c,
    "v_sub_co_u32": lambda a, b, c: a - b,
    "v_subrev_co_u32": lambda a, b, c: b - a,
    "v_subb_co_u32": lambda a, b, c: a - b - c,
    "v_subbrev_co_u32": lambda a, b, c: b - a - c,
}
"""Sums in int64: bit 32 and upward is the carry or borrow."""


def compare(ins: Instruction, operands: list[Operand]) -> Action:
    """v_cmp: lanes into a pair of scalar registers."""
    understood(ins, MODIFIERS)
    kinds, function = COMPARE[ins.op]
    to, *of = operands
    a, b = (source(ins, o, kinds[k], k) for k, o in enumerate(of))
    at = to.index
    return lambda w: write_mask(w, at, np.broadcast_to(function(a(w), b(w)), w.active.shape))


def carry(ins: Instruction, operands: list[Operand]) -> Action:
    """Sums with a carry out, and in."""
    understood(ins, MODIFIERS)
    function = CARRIES[ins.op]
    to, out, *of = operands
    a, b = (source(ins, o, "u", k) for k, o in enumerate(of[:2]))
    mask = source(ins, of[2], "m", 2) if len(of) == 3 else lambda w: np.zeros((1, 1), bool)

    def run(w: Waves) -> None:
        total = function(a(w).astype(np.int64), b(w).astype(np.int64), mask(w).astype(np.int64))
        write(w, to.index, total.astype(U32))
        write_mask(w, out.index, np.broadcast_to((total >> 32) != 0, w.active.shape))

    return run


def multiply_add(ins: Instruction, operands: list[Operand]) -> Action:
    """v_mad_u64_u32, v_mad_i64_i32: a b + c in 64 bits, with a carry out."""
    understood(ins, MODIFIERS)
    to, out, *of = operands
    signed = ins.op == "v_mad_i64_i32"
    a, b = (source(ins, o, "i" if signed else "u", k) for k, o in enumerate(of[:2]))
    c = bits_of(of[2], "U")
    store = stored(ins, to, "U")
    factor = np.int64 if signed else U64

    def run(w: Waves) -> None:
        product, addend = (a(w).astype(factor) * b(w).astype(factor)).view(U64), c(w)
        total = product + addend
        overflow = (total < product) if not signed else (product.view(np.int64) < 0) ^ (total < product)
        store(w, total)
        write_mask(w, out.index, np.broadcast_to(overflow, w.active.shape))

    return run


def bit_operation(ins: Instruction, operands: list[Operand]) -> Action:
    """v_bitop3_b32, b16: any function of three bits, by its table."""
    understood(ins, MODIFIERS | {"bitop3"})
    to, *of = operands
    table = int(ins.modifiers.get("bitop3", "0"), 0)
    kind = "u" if ins.op.endswith("b32") else "s"
    reads = [source(ins, o, kind, k) for k, o in enumerate(of)]
    store = stored(ins, to, kind)

    def run(w: Waves) -> None:
        values = [read(w) for read in reads]
        bits = np.zeros((1, 1), TYPES[kind])
        for entry in range(8):
            if table >> entry & 1:
                term = [v if entry >> (2 - k) & 1 else ~v for k, v in enumerate(values)]
                bits = bits | (term[0] & term[1] & term[2])
        store(w, bits)

    return run


def read_lane(ins: Instruction, operands: list[Operand]) -> Action:
    """v_readfirstlane_b32 and v_readlane_b32."""
    to, of, *which = operands
    read = bits_of(of, "u")
    lane = bits_of(which[0], "u") if which else None

    def run(w: Waves) -> None:
        place = lanes.first_active(w.active) if lane is None else lane(w)[:, 0] & U32(63)
        value = np.broadcast_to(read(w), w.active.shape)
        write_scalar(w, to.index, value[np.arange(len(value)), place])

    return run


def write_lane(ins: Instruction, operands: list[Operand]) -> Action:
    """v_writelane_b32: one lane, whether active or not."""
    to, of, which = operands
    read, lane = bits_of(of, "u"), bits_of(which, "u")

    def run(w: Waves) -> None:
        place = np.broadcast_to(lane(w)[:, 0] & U32(63), len(w.group))
        w.v[to.index][np.arange(len(w.group)), place] = np.broadcast_to(read(w)[:, 0], len(w.group))

    return run


def exchange(ins: Instruction, operands: list[Operand]) -> Action:
    """v_permlane16_swap_b32, 32, and v_swap_b32: both registers change, in active lanes."""
    understood(ins, {"encoding", "bound_ctrl", "fi"})
    a, b = (o.index for o in operands)
    size = {"v_permlane16_swap_b32": 16, "v_permlane32_swap_b32": 32}.get(ins.op)

    def run(w: Waves) -> None:
        if size and not w.full:
            raise ValueError(f"{ins}: a swap with inactive lanes is not known here")
        one, two = lanes.swap(w.v[a], w.v[b], size) if size else (w.v[b].copy(), w.v[a].copy())
        write(w, a, one)
        write(w, b, two)

    return run


def moved_accumulator(ins: Instruction, operands: list[Operand]) -> Action:
    """v_accvgpr_read, write, mov: between the bits.halves of one register file."""
    to, of = operands
    read = bits_of(of, "u")
    return lambda w: write(w, to.index, read(w))


TABLE: dict[str, Builder] = {
    **dict.fromkeys(COMPARE, compare),
    **dict.fromkeys(CARRIES, carry),
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_i64_i32"), multiply_add),
    **dict.fromkeys(("v_bitop3_b32", "v_bitop3_b16"), bit_operation),
    **dict.fromkeys(("v_readfirstlane_b32", "v_readlane_b32"), read_lane),
    **dict.fromkeys(("v_permlane16_swap_b32", "v_permlane32_swap_b32", "v_swap_b32"), exchange),
    **dict.fromkeys(("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"), moved_accumulator),
    "v_writelane_b32": write_lane,
}
