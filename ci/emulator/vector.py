"""Vector instructions that work lane by lane: a table of opcode -> result type, source types, function."""

from __future__ import annotations

import operator as op
from collections.abc import Callable

import numpy as np

from emulator import arithmetic as fp
from emulator import lanes
from emulator.registers import (
    TYPES,
    Operand,
    Waves,
    bits32,
    bits_of,
    source,
    write,
    write_mask,
    write_scalar,
)  # fmt: skip
from emulator.text import Instruction

Array = np.ndarray
Action = Callable[[Waves], None]
U32, U64 = np.uint32, np.uint64
LOW5, LOW6 = U32(31), U64(63)


def field(a: Array, first: Array, size: Array) -> Array:
    """v_bfe_u32."""
    mask = ((U64(1) << (size & LOW5).astype(U64)) - U64(1)).astype(U32)
    return (a >> (first & LOW5)) & mask


def signed_field(a: Array, first: Array, size: Array) -> Array:
    """v_bfe_i32: the field with its sign."""
    size = (size & LOW5).astype(np.int64)
    found = (a.astype(np.int64) & 0xFFFF_FFFF) >> (first & LOW5).astype(np.int64)
    up = 64 - size
    return np.where(size == 0, 0, (found << np.where(size == 0, 0, up)) >> np.where(size == 0, 0, up)).astype(np.int32)


def reversed_bits(a: Array) -> Array:
    """v_bfrev_b32."""
    for shift, mask in ((1, 0x55555555), (2, 0x33333333), (4, 0x0F0F0F0F), (8, 0x00FF00FF), (16, 0x0000FFFF)):
        a = ((a >> U32(shift)) & U32(mask)) | ((a & U32(mask)) << U32(shift))
    return a


def permuted_bytes(a: Array, b: Array, select: Array) -> Array:
    """v_perm_b32: each selector byte takes one of the bytes of b (0 to 3) and a (4 to 7), or is constant."""
    both = (a.astype(U64) << U64(32)) | b
    found = U32(0)
    for k in range(4):
        which = (select >> U32(8 * k)) & U32(255)
        byte = (both >> (np.minimum(which, U32(7)).astype(U64) * U64(8))) & U64(255)
        signs = np.minimum(which - U32(8), U32(3)).astype(U64) * U64(16) + U64(15)
        sign = np.where((both >> signs) & U64(1), 255, 0)
        byte = np.where(which < 8, byte, np.where(which < 12, sign, np.where(which == 12, 0, 255)))
        found = found | (byte.astype(U32) << U32(8 * k))
    return found


def aligned_bits(a: Array, b: Array, shift: Array) -> Array:
    """v_alignbit_b32."""
    return (((a.astype(U64) << U64(32)) | b) >> (shift & LOW5).astype(U64)).astype(U32)


def high_product(a: Array, b: Array) -> Array:
    return ((a.astype(U64) * b) >> U64(32)).astype(U32)


def signed_high_product(a: Array, b: Array) -> Array:
    return ((a.astype(np.int64) * b) >> 32).astype(np.int32)


def low24(a: Array) -> Array:
    return a & U32(0xFF_FFFF)


def median(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def max3(a: Array, b: Array, c: Array) -> Array:
    return fp.maximum_number(fp.maximum_number(a, b), c)


def min3(a: Array, b: Array, c: Array) -> Array:
    return fp.minimum_number(fp.minimum_number(a, b), c)


def maximum3(a: Array, b: Array, c: Array) -> Array:
    return fp.maximum(fp.maximum(a, b), c)


def minimum3(a: Array, b: Array, c: Array) -> Array:
    return fp.minimum(fp.minimum(a, b), c)


def halves(low: Array, high: Array) -> Array:
    """Two 16-bit values as one register."""
    return low.astype(U32) | (high.astype(U32) << U32(16))


def half_bits(a: Array) -> Array:
    """float32 to float16, as its bits."""
    return a.astype(np.float16).view(np.uint16)


Row = tuple[str, str, Callable[..., Array]]
SIMPLE: dict[str, Row] = {
    "v_mov_b32": ("u", "b", lambda a: a),
    "v_mov_b64": ("U", "U", lambda a: a),
    "v_not_b32": ("u", "u", op.invert),
    "v_and_b32": ("u", "uu", op.and_),
    "v_or_b32": ("u", "uu", op.or_),
    "v_xor_b32": ("u", "uu", op.xor),
    "v_xnor_b32": ("u", "uu", lambda a, b: ~(a ^ b)),
    "v_or3_b32": ("u", "uuu", lambda a, b, c: a | b | c),
    "v_and_or_b32": ("u", "uuu", lambda a, b, c: (a & b) | c),
    "v_bfi_b32": ("u", "uuu", lambda a, b, c: (a & b) | (~a & c)),
    "v_lshl_or_b32": ("u", "uuu", lambda a, b, c: (a << (b & LOW5)) | c),
    "v_lshl_add_u32": ("u", "uuu", lambda a, b, c: (a << (b & LOW5)) + c),
    "v_add_lshl_u32": ("u", "uuu", lambda a, b, c: (a + b) << (c & LOW5)),
    "v_add3_u32": ("u", "uuu", lambda a, b, c: a + b + c),
    "v_xad_u32": ("u", "uuu", lambda a, b, c: (a ^ b) + c),
    "v_add_u32": ("u", "uu", op.add),
    "v_add_u16": ("s", "ss", op.add),
    "v_sub_u16": ("s", "ss", op.sub),
    "v_mul_lo_u16": ("s", "ss", op.mul),
    "v_sub_u32": ("u", "uu", op.sub),
    "v_subrev_u32": ("u", "uu", lambda a, b: b - a),
    "v_lshlrev_b32": ("u", "uu", lambda a, b: b << (a & LOW5)),
    "v_lshrrev_b32": ("u", "uu", lambda a, b: b >> (a & LOW5)),
    "v_ashrrev_i32": ("i", "ui", lambda a, b: b >> (a & LOW5).astype(np.int32)),
    "v_lshlrev_b16": ("s", "ss", lambda a, b: b << (a & np.uint16(15))),
    "v_lshrrev_b16": ("s", "ss", lambda a, b: b >> (a & np.uint16(15))),
    "v_lshlrev_b64": ("U", "uU", lambda a, b: b << (a.astype(U64) & LOW6)),
    "v_lshrrev_b64": ("U", "uU", lambda a, b: b >> (a.astype(U64) & LOW6)),
    "v_ashrrev_i64": ("I", "uI", lambda a, b: b >> (a.astype(np.int64) & 63)),
    "v_lshl_add_u64": ("U", "UuU", lambda a, b, c: (a << b.astype(U64)) + c),
    "v_bfe_u32": ("u", "uuu", field),
    "v_bfe_i32": ("i", "uuu", signed_field),
    "v_bfrev_b32": ("u", "u", reversed_bits),
    "v_perm_b32": ("u", "uuu", permuted_bytes),
    "v_alignbit_b32": ("u", "uuu", aligned_bits),
    "v_mul_lo_u32": ("u", "uu", op.mul),
    "v_mul_hi_u32": ("u", "uu", high_product),
    "v_mul_hi_i32": ("i", "ii", signed_high_product),
    "v_mul_u32_u24": ("u", "uu", lambda a, b: low24(a) * low24(b)),
    "v_mul_i32_i24": ("i", "ii", lambda a, b: ((a << 8) >> 8) * ((b << 8) >> 8)),
    "v_mad_u32_u24": ("u", "uuu", lambda a, b, c: low24(a) * low24(b) + c),
    "v_mad_i32_i24": ("i", "iii", lambda a, b, c: ((a << 8) >> 8) * ((b << 8) >> 8) + c),
    "v_min_u32": ("u", "uu", np.minimum),
    "v_max_u32": ("u", "uu", np.maximum),
    "v_min_i32": ("i", "ii", np.minimum),
    "v_max_i32": ("i", "ii", np.maximum),
    "v_min3_u32": ("u", "uuu", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_max3_i32": ("i", "iii", lambda a, b, c: np.maximum(np.maximum(a, b), c)),
    "v_min3_i32": ("i", "iii", lambda a, b, c: np.minimum(np.minimum(a, b), c)),
    "v_med3_i32": ("i", "iii", median),
    "v_add_f32": ("f", "ff", op.add),
    "v_sub_f32": ("f", "ff", op.sub),
    "v_subrev_f32": ("f", "ff", lambda a, b: b - a),
    "v_mul_f32": ("f", "ff", op.mul),
    "v_max_f32": ("f", "ff", fp.maximum_number),
    "v_min_f32": ("f", "ff", fp.minimum_number),
    "v_max3_f32": ("f", "fff", max3),
    "v_min3_f32": ("f", "fff", min3),
    "v_maximum3_f32": ("f", "fff", maximum3),
    "v_minimum3_f32": ("f", "fff", minimum3),
    "v_fma_f32": ("f", "fff", fp.fma),
    "v_fmac_f32": ("f", "fff", fp.fma),
    "v_fmaak_f32": ("f", "fff", fp.fma),
    "v_fmamk_f32": ("f", "fff", fp.fma),
    "v_ldexp_f32": ("f", "fi", fp.ldexp),
    "v_trunc_f32": ("f", "f", np.trunc),
    "v_floor_f32": ("f", "f", np.floor),
    "v_rndne_f32": ("f", "f", np.rint),
    "v_cvt_f32_f16": ("f", "h", lambda a: a.astype(np.float32)),
    "v_cvt_f16_f32": ("h", "f", lambda a: a.astype(np.float16)),
    "v_cvt_f32_bf16": ("f", "s", fp.from_bfloat16),
    "v_cvt_pk_bf16_f32": ("u", "ff", lambda a, b: halves(fp.bfloat16(a), fp.bfloat16(b))),
    "v_cvt_pk_f16_f32": ("u", "ff", lambda a, b: halves(half_bits(a), half_bits(b))),
    "v_pack_b32_f16": ("u", "hh", lambda a, b: halves(a.view(np.uint16), b.view(np.uint16))),
    "v_cvt_f32_u32": ("f", "u", lambda a: a.astype(np.float32)),
    "v_cvt_f32_i32": ("f", "i", lambda a: a.astype(np.float32)),
    "v_cvt_u32_f32": ("u", "f", lambda a: fp.to_integer(a, np.uint32)),
    "v_cvt_i32_f32": ("i", "f", lambda a: fp.to_integer(a, np.int32)),
    "v_cndmask_b32": ("u", "bbm", lambda a, b, mask: np.where(mask, b, a)),
}  # fmt: skip
SATURATING: dict[str, Callable[[Array, Array], Array]] = {
    "v_add_u32": lambda a, b: np.where(a + b < a, U32(0xFFFF_FFFF), a + b),
    "v_sub_u32": lambda a, b: np.where(a < b, U32(0), a - b),
    "v_subrev_u32": lambda a, b: np.where(b < a, U32(0), b - a),
}
"""With `clamp`."""
FUNCTIONS = {"v_exp_f32": "exp", "v_log_f32": "log", "v_rcp_f32": "rcp", "v_rcp_iflag_f32": "rcp"}
"""Methods of arithmetic.Functions, of one float32."""
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "eq": op.eq, "lt": op.lt, "le": op.le, "gt": op.gt, "ge": op.ge, "ne": op.ne, "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b), "nle": lambda a, b: ~(a <= b),
    "ngt": lambda a, b: ~(a > b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "u": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip
SUFFIXES = {"f32": "f", "i32": "i", "u32": "u", "i64": "I", "u64": "U", "u16": "s", "f16": "h"}
COMPARE = {
    f"v_cmp_{name}_{suffix}": (kind, function)
    for name, function in COMPARISONS.items()
    for suffix, kind in SUFFIXES.items()
    if kind in "fh" or name in ("eq", "ne", "lt", "le", "gt", "ge")
}
CARRIES: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add_co_u32": lambda a, b, c: a + b,
    "v_addc_co_u32": lambda a, b, c: a + b + c,
    "v_sub_co_u32": lambda a, b, c: a - b,
    "v_subrev_co_u32": lambda a, b, c: b - a,
    "v_subb_co_u32": lambda a, b, c: a - b - c,
    "v_subbrev_co_u32": lambda a, b, c: b - a - c,
}
"""Sums in int64: bit 32 and upward is the carry or borrow."""
MODIFIERS = {"encoding", "op_sel", "quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror",
             "row_newbcast", "row_bcast", "row_mask", "bank_mask", "bound_ctrl", "dst_sel", "dst_unused", "src0_sel",
             "src1_sel"}  # fmt: skip


def understood(ins: Instruction, known: set[str]) -> None:
    """Raises:
    ValueError: an instruction has a modifier that would be ignored."""
    if strange := ins.modifiers.keys() - known:
        raise ValueError(f"{ins}: modifier {', '.join(sorted(strange))} is unknown")


def stored(ins: Instruction, to: Operand, kind: str) -> Callable[[Waves, Array], None]:
    """How a result reaches its register: through SDWA's dst_sel, op_sel's half, or DPP's mask."""
    at = to.index
    if to.kind != "v":
        raise ValueError(f"{ins}: the result is no vector register")
    encoding = ins.modifiers.get("encoding")
    if kind in ("U", "I"):
        def store_wide(w: Waves, result: Array) -> None:
            result = result.view(U64)
            write(w, at, result.astype(U32))
            write(w, at + 1, (result >> U64(32)).astype(U32))
        return store_wide  # fmt: skip
    if encoding == "sdwa":
        return lambda w, result: write(w, at, lanes.placed(bits32(result), w.v[at], ins.modifiers))
    if encoding == "dpp" and (written := lanes.dpp_written(ins.modifiers)) is not None:
        return lambda w, result: np.copyto(w.v[at], bits32(result), where=w.active & written(w))
    sources = len(ins.operands) - 1
    listed = ins.modifiers.get("op_sel", "[]").strip("[]").split(",")
    if kind in ("h", "s") and len(listed) > sources and int(listed[sources]):
        low = U32(0xFFFF)
        return lambda w, result: write(w, at, (w.v[at] & low) | (bits32(result) << U32(16)))
    return lambda w, result: write(w, at, bits32(result))


def simple(ins: Instruction, operands: list[Operand]) -> Action:
    """An instruction of SIMPLE or FUNCTIONS."""
    understood(ins, MODIFIERS | ({"clamp"} if ins.op in SATURATING else set()))
    result, kinds, function = SIMPLE.get(ins.op, ("f", "f", None))
    if "clamp" in ins.modifiers:
        function = SATURATING[ins.op]
    to, *of = operands
    if ins.op == "v_fmac_f32":
        of = [*of, to]
    if len(of) != len(kinds):
        raise ValueError(f"{ins}: {len(kinds)} sources are needed")
    reads = [read_of(ins, o, kind, k) for k, (o, kind) in enumerate(zip(of, kinds, strict=True))]
    store = stored(ins, to, result)
    if name := FUNCTIONS.get(ins.op):
        (read,) = reads
        return lambda w: store(w, getattr(w.world.functions, name)(read(w)))
    if len(reads) == 1:
        (a,) = reads
        return lambda w: store(w, function(a(w)))
    if len(reads) == 2:
        a, b = reads
        return lambda w: store(w, function(a(w), b(w)))
    a, b, c = reads
    return lambda w: store(w, function(a(w), b(w), c(w)))


def read_of(ins: Instruction, of: Operand, kind: str, position: int) -> Callable[[Waves], Array]:
    """A source; of type b are 32 bits that sign modifiers may change."""
    if kind != "b":
        return source(ins, of, kind, position)
    read = source(ins, of, "f", position)
    return lambda w: read(w).view(U32)


def compare(ins: Instruction, operands: list[Operand]) -> Action:
    """v_cmp: lanes into a pair of scalar registers."""
    understood(ins, MODIFIERS)
    kind, function = COMPARE[ins.op]
    to, *of = operands
    a, b = (source(ins, o, kind, k) for k, o in enumerate(of))
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
        found = np.zeros((1, 1), TYPES[kind])
        for entry in range(8):
            if table >> entry & 1:
                term = [v if entry >> (2 - k) & 1 else ~v for k, v in enumerate(values)]
                found = found | (term[0] & term[1] & term[2])
        store(w, found)

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
    """v_accvgpr_read, write, mov: between the halves of one register file."""
    to, of = operands
    read = bits_of(of, "u")
    return lambda w: write(w, to.index, read(w))


Builder = Callable[[Instruction, list[Operand]], Action]
TABLE: dict[str, Builder] = {
    **dict.fromkeys((*SIMPLE, *FUNCTIONS), simple),
    **dict.fromkeys(COMPARE, compare),
    **dict.fromkeys(CARRIES, carry),
    **dict.fromkeys(("v_mad_u64_u32", "v_mad_i64_i32"), multiply_add),
    **dict.fromkeys(("v_bitop3_b32", "v_bitop3_b16"), bit_operation),
    **dict.fromkeys(("v_readfirstlane_b32", "v_readlane_b32"), read_lane),
    **dict.fromkeys(("v_permlane16_swap_b32", "v_permlane32_swap_b32", "v_swap_b32"), exchange),
    **dict.fromkeys(("v_accvgpr_read_b32", "v_accvgpr_write_b32", "v_accvgpr_mov_b32"), moved_accumulator),
    "v_writelane_b32": write_lane,
}
