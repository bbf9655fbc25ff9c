"""Scalar instructions: a table of opcode -> result bits, source types, function, what SCC becomes."""

from __future__ import annotations

import operator as op
from collections.abc import Callable

import numpy as np

from ci.emulator import integers
from ci.emulator.registers import EXEC, Operand, Waves, constant, wide, write_scalar
from ci.emulator.text import Instruction

Array = np.ndarray
Action = Callable[[Waves], None]
U32, U64, I32, I64 = np.uint32, np.uint64, np.int32, np.int64
KINDS = {"u": U32, "i": I32, "U": U64, "I": I64}


def read(of: Operand, kind: str) -> Callable[[Waves], Array]:
    """A scalar source (waves,)."""
    if of.kind == "v":
        raise ValueError(f"{of.text} in a scalar instruction")
    double = kind in "UI"
    if of.kind == "c":
        # a wide operand extends an integer by its sign
        value = np.array([constant(of.text, kind)], U64 if double else U32).view(KINDS[kind])
        return lambda w: np.broadcast_to(value, w.scc.shape)
    at = of.index
    if double:
        return lambda w: wide(w.s[at], w.s[at + 1]).view(KINDS[kind])
    return lambda w: w.s[at].view(KINDS[kind])


def nonzero(result: Array, *_: Array) -> Array:
    return result != 0


def carry_out(result: Array, a: Array, b: Array, *c: Array) -> Array:
    return (a.astype(U64) + b + (c[0] if c else U64(0))) >> U64(32) != 0


def borrow_out(result: Array, a: Array, b: Array, *c: Array) -> Array:
    return a.astype(I64) - b.astype(I64) - (c[0].astype(I64) if c else 0) < 0


def overflow(result: Array, a: Array, b: Array) -> Array:
    return a.astype(I64) + b != result


def underflow(result: Array, a: Array, b: Array) -> Array:
    return a.astype(I64) - b != result


def first_chosen(result: Array, a: Array, b: Array) -> Array:
    """s_min, s_max: whether the first was taken."""
    return result == a


def field(a: Array, control: Array) -> Array:
    """s_bfe_u32: bits 4:0 of the control are the first bit, 22:16 the size."""
    first, size = control & U32(31), np.minimum((control >> U32(16)) & U32(127), U32(32))
    return (a >> first) & ((U64(1) << size.astype(U64)) - U64(1)).astype(U32)


def signed_field(a: Array, control: Array) -> Array:
    control = control.view(U32)
    size = np.minimum((control >> U32(16)) & U32(127), U32(32)).astype(I64)
    unsigned = field(a.view(U32), control).astype(I64)
    return np.where(size == 0, 0, (unsigned << (64 - size)) >> (64 - size)).astype(I32)


def made_mask(size: Array, first: Array) -> Array:
    return ((U64(1) << (size & U32(31)).astype(U64)) - U64(1)).astype(U32) << (first & U32(31))


def binary(a: Array) -> Array:
    """(waves, bits), the lowest bit first."""
    return np.unpackbits(np.ascontiguousarray(a)[:, None].view(np.uint8), axis=-1, bitorder="little")


def shifted(amount: int) -> Callable[[Array, Array], Array]:
    return lambda a, b: (a << U32(amount)) + b


def shift_carry(amount: int) -> Callable[..., Array]:
    return lambda result, a, b: ((a.astype(U64) << U64(amount)) + b) >> U64(32) != 0


def counted(a: Array) -> Array:
    return binary(a).sum(-1).astype(U32)


def first_of(bits: Array) -> Array:
    """The place of the first 1, or -1."""
    return np.where(bits.any(-1), bits.argmax(-1), -1).astype(I32).view(U32)


def first_set(a: Array) -> Array:
    """s_ff1_i32: the lowest bit that is 1, or -1."""
    return first_of(binary(a))


def leading_zeros(a: Array) -> Array:
    """s_flbit_i32_b32: zeros before the highest 1, or -1."""
    return first_of(binary(a)[:, ::-1])


Row = tuple[str, Callable[..., Array], Callable[..., Array] | None]
SHIFT32, SHIFT64 = U32(31), U64(63)
LOGIC = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b), "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip
ROWS: dict[str, Row] = {
    **{f"s_{n}_b32": ("uu", f, nonzero) for n, f in LOGIC.items()},
    **{f"s_{n}_b64": ("UU", f, nonzero) for n, f in LOGIC.items()},
    **{f"s_lshl{k}_add_u32": ("uu", shifted(k), shift_carry(k)) for k in (1, 2, 3, 4)},
    "s_mov_b32": ("u", lambda a: a, None),
    "s_mov_b64": ("U", lambda a: a, None),
    "s_not_b32": ("u", op.invert, nonzero),
    "s_not_b64": ("U", op.invert, nonzero),
    "s_brev_b32": ("u", integers.reversed_bits, None),
    "s_sext_i32_i16": ("i", lambda a: (a << 16) >> 16, None),
    "s_sext_i32_i8": ("i", lambda a: (a << 24) >> 24, None),
    "s_abs_i32": ("i", np.abs, nonzero),
    "s_bcnt1_i32_b32": ("u", counted, nonzero),
    "s_bcnt1_i32_b64": ("U", counted, nonzero),
    "s_ff1_i32_b32": ("u", first_set, None),
    "s_ff1_i32_b64": ("U", first_set, None),
    "s_flbit_i32_b32": ("u", leading_zeros, None),
    "s_add_i32": ("ii", op.add, overflow),
    "s_sub_i32": ("ii", op.sub, underflow),
    "s_add_u32": ("uu", op.add, carry_out),
    "s_sub_u32": ("uu", op.sub, borrow_out),
    "s_mul_i32": ("ii", op.mul, None),
    "s_mul_hi_u32": ("uu", integers.high_product, None),
    "s_mul_hi_i32": ("ii", integers.signed_high_product, None),
    "s_lshl_b32": ("uu", lambda a, b: a << (b & SHIFT32), nonzero),
    "s_lshr_b32": ("uu", lambda a, b: a >> (b & SHIFT32), nonzero),
    "s_ashr_i32": ("iu", lambda a, b: a >> (b & SHIFT32).astype(I32), nonzero),
    "s_lshl_b64": ("Uu", lambda a, b: a << (b.astype(U64) & SHIFT64), nonzero),
    "s_lshr_b64": ("Uu", lambda a, b: a >> (b.astype(U64) & SHIFT64), nonzero),
    "s_ashr_i64": ("Iu", lambda a, b: a >> (b.astype(I64) & 63), nonzero),
    "s_min_i32": ("ii", np.minimum, first_chosen),
    "s_max_i32": ("ii", np.maximum, first_chosen),
    "s_min_u32": ("uu", np.minimum, first_chosen),
    "s_max_u32": ("uu", np.maximum, first_chosen),
    "s_bfe_u32": ("uu", field, nonzero),
    "s_bfe_i32": ("ii", signed_field, nonzero),
    "s_bfm_b32": ("uu", made_mask, None),
    "s_pack_ll_b32_b16": ("uu", lambda a, b: (a & U32(0xFFFF)) | (b << U32(16)), None),
    "s_pack_hh_b32_b16": ("uu", lambda a, b: (a >> U32(16)) | (b & U32(0xFFFF_0000)), None),
}
COMPARISONS = {"eq": op.eq, "lg": op.ne, "gt": op.gt, "ge": op.ge, "lt": op.lt, "le": op.le}
COMPARE = {
    **{f"s_cmp_{n}_{s}32": (s, f) for n, f in COMPARISONS.items() for s in "iu"},
    **{f"s_cmp_{n}_u64": ("U", COMPARISONS[n]) for n in ("eq", "lg")},
    **{f"s_cmpk_{n}_{s}32": (s, f) for n, f in COMPARISONS.items() for s in "iu"},
}


def simple(ins: Instruction, operands: list[Operand]) -> Action:
    """An instruction of ROWS."""
    kinds, function, condition = ROWS[ins.op]
    to, *of = operands
    reads = [read(o, kind) for o, kind in zip(of, kinds, strict=True)]

    def run(w: Waves) -> None:
        values = [one(w) for one in reads]
        result = function(*values)
        if condition is not None:
            w.scc = condition(result, *values)
        write_scalar(w, to.index, result.view(U64 if result.dtype.itemsize == 8 else U32))

    return run


def with_carry(ins: Instruction, operands: list[Operand]) -> Action:
    """s_addc_u32 and s_subb_u32: SCC goes in and comes out."""
    to, *of = operands
    a, b = (read(o, "u") for o in of)
    adds = ins.op == "s_addc_u32"

    def run(w: Waves) -> None:
        one, two, carry = a(w), b(w), w.scc.astype(U32)
        result = one + two + carry if adds else one - two - carry
        w.scc = (carry_out if adds else borrow_out)(result, one, two, carry)
        write_scalar(w, to.index, result)

    return run


def short(text: str) -> int:
    """An immediate of 16 signed bits, which the text gives without its sign."""
    value = int(text, 0) & 0xFFFF
    return value - (value >> 15 << 16)


def immediate(ins: Instruction, operands: list[Operand]) -> Action:
    """s_movk_i32, s_addk_i32, s_mulk_i32, s_cmovk_i32."""
    to, of = operands
    value, before = I32(short(of.text)), read(to, "i")

    def run(w: Waves) -> None:
        one = before(w)
        if ins.op == "s_movk_i32":
            result = np.broadcast_to(value, one.shape)
        elif ins.op == "s_cmovk_i32":
            result = np.where(w.scc, value, one)
        elif ins.op == "s_mulk_i32":
            result = one * value
        else:
            result = one + value
            w.scc = overflow(result, one, value)
        write_scalar(w, to.index, np.ascontiguousarray(result).view(U32))

    return run


def compare(ins: Instruction, operands: list[Operand]) -> Action:
    """s_cmp; s_cmpk extends its immediate by its sign where it compares signed numbers."""
    kind, function = COMPARE[ins.op]
    a = read(operands[0], kind)
    if ins.op.startswith("s_cmpk"):
        value = KINDS[kind](short(operands[1].text) if kind == "i" else int(operands[1].text, 0) & 0xFFFF)

        def b(w: Waves) -> Array:
            return value
    else:
        b = read(operands[1], kind)

    def run(w: Waves) -> None:
        w.scc = function(a(w), b(w))

    return run


def bit_compare(ins: Instruction, operands: list[Operand]) -> Action:
    """s_bitcmp0_b32, s_bitcmp1_b32, and of b64."""
    double = ins.op.endswith("b64")
    a, b = read(operands[0], "U" if double else "u"), read(operands[1], "u")
    expected = ins.op.startswith("s_bitcmp1")

    def run(w: Waves) -> None:
        value = a(w)
        place = (b(w) & U32(63 if double else 31)).astype(value.dtype)
        w.scc = ((value >> place) & value.dtype.type(1) != 0) == expected

    return run


def select(ins: Instruction, operands: list[Operand]) -> Action:
    """s_cselect, s_cmov."""
    to, *of = operands
    kind = "U" if ins.op.endswith("b64") else "u"
    reads = [read(o, kind) for o in (of if ins.op.startswith("s_cselect") else (*of, to))]
    return lambda w: write_scalar(w, to.index, np.where(w.scc, reads[0](w), reads[1](w)))


def save_exec(ins: Instruction, operands: list[Operand]) -> Action:
    """s_and_saveexec_b64 and its like: EXEC goes to the destination, the result to EXEC."""
    to, of = operands
    a = read(of, "U")
    name = ins.op.removeprefix("s_").removesuffix("_saveexec_b64")
    # andn2 takes the source without EXEC, andn1 EXEC without the source
    function = {"andn1": lambda s, e: ~s & e, "orn1": lambda s, e: ~s | e, **LOGIC}[name]
    active = read(Operand("s", EXEC, 2, "exec"), "U")

    def run(w: Waves) -> None:
        before, value = active(w), a(w)
        result = function(value, before)
        write_scalar(w, to.index, before)
        write_scalar(w, EXEC, result)
        w.scc = result != 0

    return run


def set_bit(ins: Instruction, operands: list[Operand]) -> Action:
    """s_bitset0_b32, s_bitset1_b32."""
    to, of = operands
    place, before = read(of, "u"), read(to, "u")

    def run(w: Waves) -> None:
        bit = U32(1) << (place(w) & U32(31))
        write_scalar(w, to.index, before(w) | bit if ins.op == "s_bitset1_b32" else before(w) & ~bit)

    return run


Builder = Callable[[Instruction, list[Operand]], Action]
TABLE: dict[str, Builder] = {
    **dict.fromkeys(ROWS, simple),
    **dict.fromkeys(COMPARE, compare),
    **dict.fromkeys(("s_addc_u32", "s_subb_u32"), with_carry),
    **dict.fromkeys(("s_movk_i32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32"), immediate),
    **dict.fromkeys(("s_bitcmp0_b32", "s_bitcmp1_b32", "s_bitcmp0_b64", "s_bitcmp1_b64"), bit_compare),
    **dict.fromkeys(("s_cselect_b32", "s_cselect_b64", "s_cmov_b32", "s_cmov_b64"), select),
    **dict.fromkeys((f"s_{n}_saveexec_b64" for n in ("andn1", "orn1", *LOGIC)), save_exec),
    **dict.fromkeys(("s_bitset0_b32", "s_bitset1_b32"), set_bit),
}
CONDITIONS: dict[str, Callable[[Waves], Array]] = {
    "s_branch": lambda w: np.ones_like(w.scc),
    "s_cbranch_scc0": lambda w: ~w.scc,
    "s_cbranch_scc1": lambda w: w.scc,
    "s_cbranch_vccz": lambda w: (w.s[106] | w.s[107]) == 0,
    "s_cbranch_vccnz": lambda w: (w.s[106] | w.s[107]) != 0,
    "s_cbranch_execz": lambda w: ~w.active.any(-1),
    "s_cbranch_execnz": lambda w: w.active.any(-1),
}
"""When a branch is taken."""
