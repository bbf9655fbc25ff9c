"""Which registers an instruction reads and writes, and what kind of instruction it is."""

from __future__ import annotations

from dataclasses import dataclass

from ci.emulator.irregular import CARRIES
from ci.emulator.registers import EXEC, M0, VECTORS, operand
from ci.emulator.text import Instruction
from ci.emulator.vector import FUNCTIONS

CONTROL = ("s_waitcnt", "s_branch", "s_cbranch", "s_nop", "s_barrier", "s_endpgm", "s_setprio")
"""They touch no register that is listed."""
TESTS = ("s_cmp", "s_bitcmp")
"""Their result is SCC."""
BOTH = ("v_permlane16_swap_b32", "v_permlane32_swap_b32", "v_swap_b32")
"""Their two operands are read and written."""


@dataclass(frozen=True)
class Effects:
    """Registers by number: vector ones from 0, scalar ones from VECTORS."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    kind: str
    """scalar, vector, function (one that takes longer), matrix, lds, memory, constant (scalar load) or
    none.
    """
    loads: bool = False
    """Whether `writes` arrive later."""
    operands: tuple[tuple[int, ...], ...] = ()
    """Registers of each operand."""

    @property
    def touched(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys((*self.reads, *self.writes)))


def kind_of(ins: Instruction) -> str:
    op = ins.op
    if op.startswith("v_mfma"):
        return "matrix"
    if op in FUNCTIONS:
        return "function"
    if op.startswith("v_"):
        return "vector"
    if op.startswith("ds_"):
        return "lds"
    if op.startswith(("buffer_", "global_", "scratch_")):
        return "memory"
    if op.startswith("s_load"):
        return "constant"
    return "none" if op.startswith(CONTROL) else "scalar"


def effects(ins: Instruction, accumulators: int) -> Effects:
    """What one instruction touches, EXEC aside, which every vector instruction reads."""
    kind = kind_of(ins)
    if ins.op.startswith(CONTROL):
        return Effects((), (), "none")
    touched = [() if text == "off" else tuple(operand(text, accumulators).registers) for text in ins.operands]
    to_lds, stores = "lds" in ins.modifiers, "_store" in ins.op or ins.op.startswith("ds_write")
    if ins.op in BOTH:
        written, read = touched, touched
    elif stores or to_lds or ins.op.startswith(TESTS):
        written, read = [], touched
    else:
        count = 2 if ins.op in CARRIES or ins.op.startswith(("v_mad_u64", "v_mad_i64", "v_div_scale")) else 1
        written, read = touched[:count], touched[count:]
        if partial(ins):
            read = [*read, touched[0]]
    reads = [r for registers in read for r in registers]
    writes = [r for registers in written for r in registers]
    if to_lds:
        reads.append(VECTORS + M0)
    if "saveexec" in ins.op:
        reads += [VECTORS + EXEC, VECTORS + EXEC + 1]
        writes += [VECTORS + EXEC, VECTORS + EXEC + 1]
    loads = kind in ("memory", "constant", "lds") and not stores
    return Effects(tuple(reads), tuple(writes), kind, loads, tuple(touched))


def partial(ins: Instruction) -> bool:
    """Whether what stood in the destination matters."""
    listed = ins.modifiers.get("op_sel", "").strip("[]").split(",")
    return (
        ins.op in ("v_fmac_f32", "v_writelane_b32", "s_cmov_b32", "s_addk_i32", "s_mulk_i32", "s_cmovk_i32")
        or ins.op.endswith(("_mixlo_f16", "_mixhi_f16"))
        or ins.modifiers.get("dst_unused") == "UNUSED_PRESERVE"
        or shifted(ins, listed)
        or (ins.modifiers.get("encoding") == "dpp" and "bound_ctrl" not in ins.modifiers)
    )


def shifted(ins: Instruction, listed: list[str] | None = None) -> bool:
    """Whether a 16-bit result goes to the high half."""
    listed = listed if listed is not None else ins.modifiers.get("op_sel", "").strip("[]").split(",")
    packed = ins.op.startswith(("v_pk_", "v_fma_mix", "v_mad_mix"))
    return not packed and len(listed) == len(ins.operands) and listed[-1] == "1"
