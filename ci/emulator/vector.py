"""Vector instructions that work lane by lane: a table of opcode -> result type, source types, function."""

from __future__ import annotations

import operator as op
from collections.abc import Callable

import numpy as np

from ci.emulator import arithmetic as fp
from ci.emulator import integers as bits
from ci.emulator import lanes
from ci.emulator.registers import Operand, Waves, bits32, source, write
from ci.emulator.text import Instruction

Array = np.ndarray
Action = Callable[[Waves], None]
U32, U64 = np.uint32, np.uint64
LOW5, LOW6 = U32(31), U64(63)


def of_three(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, c: function(function(a, b), c)


maximum3, minimum3 = of_three(fp.maximum), of_three(fp.minimum)
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
    "v_ashrrev_i16": ("s", "ss", bits.shifted_with_sign),
    "v_lshlrev_b64": ("U", "uU", lambda a, b: b << (a.astype(U64) & LOW6)),
    "v_lshrrev_b64": ("U", "uU", lambda a, b: b >> (a.astype(U64) & LOW6)),
    "v_ashrrev_i64": ("I", "uI", lambda a, b: b >> (a.astype(np.int64) & 63)),
    "v_lshl_add_u64": ("U", "UuU", lambda a, b, c: (a << b.astype(U64)) + c),
    "v_bfe_u32": ("u", "uuu", bits.field),
    "v_bfe_i32": ("i", "uuu", bits.signed_field),
    "v_bfrev_b32": ("u", "u", bits.reversed_bits),
    "v_perm_b32": ("u", "uuu", bits.permuted_bytes),
    "v_alignbit_b32": ("u", "uuu", bits.aligned_bits),
    "v_mul_lo_u32": ("u", "uu", op.mul),
    "v_mul_hi_u32": ("u", "uu", bits.high_product),
    "v_mul_hi_i32": ("i", "ii", bits.signed_high_product),
    "v_mul_u32_u24": ("u", "uu", lambda a, b: bits.low24(a) * bits.low24(b)),
    "v_mul_i32_i24": ("i", "ii", lambda a, b: ((a << 8) >> 8) * ((b << 8) >> 8)),
    "v_mad_u32_u24": ("u", "uuu", lambda a, b, c: bits.low24(a) * bits.low24(b) + c),
    "v_mad_i32_i24": ("i", "iii", lambda a, b, c: ((a << 8) >> 8) * ((b << 8) >> 8) + c),
    "v_min_u32": ("u", "uu", np.minimum),
    "v_max_u32": ("u", "uu", np.maximum),
    "v_min_i32": ("i", "ii", np.minimum),
    "v_max_i32": ("i", "ii", np.maximum),
    "v_min3_u32": ("u", "uuu", of_three(np.minimum)),
    "v_max3_i32": ("i", "iii", of_three(np.maximum)),
    "v_min3_i32": ("i", "iii", of_three(np.minimum)),
    "v_med3_i32": ("i", "iii", bits.median),
    "v_med3_u32": ("u", "uuu", bits.median),
    "v_add_f32": ("f", "ff", op.add),
    "v_sub_f32": ("f", "ff", op.sub),
    "v_subrev_f32": ("f", "ff", lambda a, b: b - a),
    "v_mul_f32": ("f", "ff", op.mul),
    "v_max_f32": ("f", "ff", fp.maximum_number),
    "v_min_f32": ("f", "ff", fp.minimum_number),
    "v_max3_f32": ("f", "fff", of_three(fp.maximum_number)),
    "v_min3_f32": ("f", "fff", of_three(fp.minimum_number)),
    "v_maximum3_f32": ("f", "fff", maximum3),
    "v_minimum3_f32": ("f", "fff", minimum3),
    "v_max_f16": ("h", "hh", fp.maximum_number),
    "v_min_f16": ("h", "hh", fp.minimum_number),
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
    "v_cvt_pk_bf16_f32": ("u", "ff", lambda a, b: bits.halves(fp.bfloat16(a), fp.bfloat16(b))),
    "v_cvt_pk_f16_f32": ("u", "ff", lambda a, b: bits.halves(bits.half_bits(a), bits.half_bits(b))),
    "v_pack_b32_f16": ("u", "hh", lambda a, b: bits.halves(a.view(np.uint16), b.view(np.uint16))),
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
FUNCTIONS = {
    "v_exp_f32": "exp", "v_log_f32": "log", "v_rcp_f32": "rcp", "v_rcp_iflag_f32": "rcp",
    "v_sqrt_f32": "sqrt",
}  # fmt: skip
"""Methods of arithmetic.Functions, of one float32."""
MODIFIERS = {
    "encoding", "op_sel", "dst_sel", "dst_unused", "src0_sel", "src1_sel", "row_mask", "bank_mask",
    "bound_ctrl", "quad_perm", "row_shl", "row_shr", "row_ror", "row_mirror", "row_half_mirror",
    "row_newbcast", "row_bcast",
}  # fmt: skip


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


Builder = Callable[[Instruction, list[Operand]], Action]
TABLE: dict[str, Builder] = dict.fromkeys((*SIMPLE, *FUNCTIONS), simple)
