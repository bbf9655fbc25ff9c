"""Wait states that the hardware needs between two instructions and does not insert itself.

Rules and numbers for gfx940 and gfx950 come from the CDNA3 and CDNA4 ISA documents (chapter "Manually
Inserted Wait States"), and are applied as LLVM's hazard recogniser does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ci.emulator.effects import Effects, shifted
from ci.emulator.memory import Finding
from ci.emulator.registers import EXEC, M0, VECTORS
from ci.emulator.text import Instruction

EXEC_REGISTERS = (VECTORS + EXEC, VECTORS + EXEC + 1)
LANE_SELECTS = ("v_readlane_b32", "v_writelane_b32")
READS_LANE = ("v_readlane_b32", "v_readfirstlane_b32")
SWAPS = ("v_permlane16_swap_b32", "v_permlane32_swap_b32")
PASSES = {
    "32x32x2_f32": 16, "16x16x4_f32": 8, "32x32x8": 8, "16x16x16": 4, "32x32x16": 8, "16x16x32": 4,
}  # fmt: skip
"""Passes of a matrix instruction, four cycles each."""
WAR = {4: 3, 8: 7, 16: 15}
"""A matrix instruction of so many passes reads its addend for so long."""
HORIZON = 32
"""Further back nothing matters."""


@dataclass
class Hazards:
    """When registers were written and how, counted in issued instructions and the states of s_nop."""

    arch: str
    clock: int = 0
    written: dict[int, tuple[int, str, Instruction]] = field(default_factory=dict)
    """Register -> (when, how, by what): how is vector, function, shifted, scalar, matrix or other."""
    stored: dict[int, int] = field(default_factory=dict)
    """Data of a store of more than 8 bytes -> when."""
    addends: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Addend of a 16-bit matrix instruction -> (when, passes)."""

    def copy(self) -> Hazards:
        return Hazards(self.arch, self.clock, dict(self.written), dict(self.stored), dict(self.addends))

    def use(self, ins: Instruction, effects: Effects) -> None:
        """An instruction issues.

        Raises:
            Finding: it comes too early after another.
        """
        kind = effects.kind
        if kind == "none":
            self.clock += 1 + (int(ins.operands[0], 0) if ins.op == "s_nop" else 0)
            return
        vector = kind in ("vector", "function", "matrix")
        if vector or kind in ("memory", "lds"):
            for register in effects.reads:
                self.check(ins, effects, register)
            self.check_exec(ins, kind)
            self.check_writes(ins, effects, vector)
        self.note(ins, effects)
        self.clock += 1

    def since(self, register: int) -> tuple[int, str, Instruction]:
        """(wait states between, how it was written, by what)."""
        when, how, by = self.written.get(register, (self.clock - HORIZON, "other", None))
        return self.clock - when - 1, how, by

    def check(self, ins: Instruction, effects: Effects, register: int) -> None:
        """One register that is read."""
        states, how, by = self.since(register)
        if by is None or states > 20:
            return
        needed = self.needed(ins, effects, register, how, by)
        if states < needed:
            raise Finding("hazard", ins, f"{states} wait states after [{by}], {needed} are needed")

    def needed(self, ins: Instruction, effects: Effects, register: int, how: str, by: Instruction) -> int:
        kind, scalar = effects.kind, register >= VECTORS
        by_vector = how in ("vector", "function", "shifted")
        if how == "matrix":
            return self.after_matrix(ins, effects, register, by)
        if scalar:
            if how == "scalar":
                return 1 if register == VECTORS + M0 and "lds" in ins.modifiers else 0
            if not by_vector:
                return 0
            if ins.op in LANE_SELECTS and register in effects.operands[-1]:
                return 4
            return 5 if kind == "memory" else 2 if kind in ("vector", "function", "matrix") else 0
        if not by_vector or kind in ("memory", "lds"):
            return 0
        if kind == "matrix" or ins.op in SWAPS:
            return 2
        if (
            ins.modifiers.get("encoding") == "dpp"
            and len(effects.operands) > 1
            and register in effects.operands[1]
        ):
            return 2
        if how == "function" and kind != "function":
            return 1
        return 1 if how == "shifted" or ins.op in READS_LANE else 0

    def check_exec(self, ins: Instruction, kind: str) -> None:
        """EXEC written by a vector compare."""
        states, how, by = self.since(EXEC_REGISTERS[0])
        if how not in ("vector", "function") or by is None:
            return
        dpp = ins.modifiers.get("encoding") == "dpp"
        needed = 5 if dpp else 4 if kind == "matrix" or ins.op in (*READS_LANE, *LANE_SELECTS, *SWAPS) else 0
        if states < needed:
            raise Finding("hazard", ins, f"{states} wait states after [{by}] wrote EXEC, {needed} are needed")

    def check_writes(self, ins: Instruction, effects: Effects, vector: bool) -> None:
        """Registers that are written while something earlier still reads or writes them."""
        for register in effects.writes:
            states, how, by = self.since(register)
            if how == "matrix" and by is not None and effects.kind != "matrix":
                needed = self.latency(by)
                if states < needed:
                    raise Finding(
                        "hazard", ins, f"overwrites the result of [{by}] after {states} of {needed} states"
                    )
            if vector and register in self.stored and self.clock - self.stored[register] - 1 < 2:
                raise Finding("hazard", ins, "overwrites the data of a wide store that has just been issued")
            if register in self.addends and effects.kind != "matrix":
                when, passes = self.addends[register]
                if self.clock - when - 1 < WAR[passes]:
                    raise Finding("hazard", ins, f"overwrites an addend within {WAR[passes]} wait states")

    def latency(self, by: Instruction) -> int:
        """States from a matrix instruction to anything but another that adds to its result."""
        passes, narrow = passes_of(by)
        return passes + (3 + (self.arch == "gfx950") if narrow else 2)

    def after_matrix(self, ins: Instruction, effects: Effects, register: int, by: Instruction) -> int:
        """States after a matrix instruction wrote a register."""
        if effects.kind != "matrix":
            return self.latency(by)
        _, a, b, _ = effects.operands
        if register in a or register in b:
            return self.latency(by)
        passes, narrow = passes_of(by)
        whole = ins.operands[3] == by.operands[0]
        if whole:
            return 2 if passes == 2 else 0
        if passes_of(ins)[1] and not narrow:
            return 0
        return passes + (1 + (self.arch == "gfx950") if narrow else 0)

    def note(self, ins: Instruction, effects: Effects) -> None:
        kind = effects.kind
        how = kind if kind in ("function", "matrix", "scalar") else "vector" if kind == "vector" else "other"
        if how == "vector" and (shifted(ins) or ins.modifiers.get("dst_sel", "DWORD") != "DWORD"):
            how = "shifted"
        for register in effects.writes:
            self.written[register] = self.clock, how, ins
            self.stored.pop(register, None)
            self.addends.pop(register, None)
        if kind == "memory" and "_store" in ins.op:
            data = (
                max(effects.operands[:2], key=len) if not ins.op.startswith("buffer") else effects.operands[0]
            )
            # a buffer store with a scalar offset register holds its data back
            if len(data) > 2 and not (ins.op.startswith("buffer") and effects.operands[-1]):
                self.stored.update(dict.fromkeys(data, self.clock))
        if kind == "matrix" and passes_of(ins)[1]:
            passes = passes_of(ins)[0]
            for register in effects.operands[3]:
                if register not in effects.writes:
                    self.addends[register] = self.clock, passes


def passes_of(ins: Instruction) -> tuple[int, bool]:
    """(passes, whether its numbers have 16 bits)."""
    name = ins.op.removeprefix("v_mfma_f32_")
    narrow = not name.endswith("_f32")
    return PASSES[name.rpartition("_")[0] if narrow else name], narrow
