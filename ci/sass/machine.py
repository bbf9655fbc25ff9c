"""One block of threads that runs a program: whole numbers are computed, floats become formulas.

Threads run in the order of the program: those that are furthest behind go first, so that branches join
again where they can.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ci.sass import floats, integers
from ci.sass.formulas import Formulas
from ci.sass.memory import Memory, load, matrices, spill, store
from ci.sass.text import Instruction, Operand, Program, Unknown, float_bits

MOST_STEPS = 1 << 20
WORD = 0xFFFF_FFFF
IGNORED = frozenset({
    "NOP", "WARPSYNC", "BSSY", "BSYNC", "BREAK", "DEPBAR", "LDGDEPBAR", "ERRBAR", "MEMBAR", "YIELD", "BAR",
    "CCTL",
})  # fmt: skip
"""Instructions that order what threads do and compute nothing."""


@dataclass
class Block:
    """The state of one block of threads."""

    program: Program
    bank: bytes
    """The constant bank, arguments from 0x210 on."""
    place: tuple[int, int, int]
    """The block's number along each axis of the grid."""
    threads: int
    memory: Memory
    formulas: Formulas
    registers: dict[str, np.ndarray] = field(default_factory=dict)
    stack: dict[str, np.ndarray] = field(default_factory=dict)
    """Words that did not fit into registers, by their address."""

    def __post_init__(self) -> None:
        self.shared = Memory(self.formulas, self.unwritten)
        self.active = np.ones(self.threads, bool)
        self.alive = np.ones(self.threads, bool)
        self.lanes = np.arange(self.threads)

    def unwritten(self, address: int) -> int:
        """The half at an address of shared memory that was never written: a formula of its own."""
        return self.memory.half(self.formulas.of("unwritten", address & ~3), address >> 1 & 1)

    # ---------------------------------------------------------------------------------------- operands

    def read(self, o: Operand, more: int = 0, as_float: bool = False) -> np.ndarray:
        """The word of an operand in every thread, `more` registers on, signs and bars applied."""
        words = self.plain(o, more, as_float)
        if o.kind == "predicate":
            return self.mapped(self.formulas.negated_truth, words) if o.sign == "!" else words
        if as_float:
            if o.absolute:
                words = self.mapped(self.formulas.absolute, words)
            return self.mapped(self.formulas.negated, words) if o.sign == "-" else words
        if o.sign == "-":
            return (-integers.known(words)) & WORD
        if o.sign == "~":
            return ~integers.known(words) & WORD
        return words

    def plain(self, o: Operand, more: int, as_float: bool) -> np.ndarray:
        """The word without its modifiers."""
        if o.kind == "number":
            if isinstance(o.value, float):
                return np.full(self.threads, float_bits(o.value) if as_float else int(o.value) & WORD)
            # an immediate of 64 bits is extended
            return np.full(self.threads, (o.value >> 32 * more) & WORD)
        if o.kind == "constant":
            at = np.full(self.threads, o.value + 4 * more)
            for part in o.parts:
                at = at + self.plain(part, 0, False)
            return np.array([int.from_bytes(self.bank[a : a + 4], "little") for a in at.tolist()])
        if o.kind == "predicate":
            if o.name.endswith("T"):
                return np.ones(self.threads, np.int64)
            return self.register(o.name)
        if o.kind == "register":
            if o.name.endswith("Z"):
                return np.zeros(self.threads, np.int64)
            letters = o.name.rstrip("0123456789")
            return self.register(f"{letters}{int(o.name[len(letters) :]) + more}")
        return self.special(o.name)

    def register(self, name: str) -> np.ndarray:
        """A register's content; ptxas collects predicates in the bits of one that it never cleared."""
        return self.registers.setdefault(name, np.zeros(self.threads, np.int64))

    def special(self, name: str) -> np.ndarray:
        """A special register."""
        if name == "SR_TID.X":
            return self.lanes.copy()
        if name == "SR_LANEID":
            return self.lanes % 32
        if name.startswith("SR_CTAID."):
            return np.full(self.threads, self.place["XYZ".index(name[-1])])
        if name in ("SRZ", "SR_CgaCtaId", "SR_TID.Y", "SR_TID.Z"):
            return np.zeros(self.threads, np.int64)
        raise Unknown(f"special register {name}")

    def write(self, o: Operand, words: np.ndarray, more: int = 0) -> None:
        """Set a register or predicate where threads are active and the guard holds."""
        if o.name.endswith(("RZ", "PT")):
            return
        letters = o.name.rstrip("0123456789")
        name = f"{letters}{int(o.name[len(letters) :]) + more}"
        self.registers[name] = self.merged(words, self.register(name))

    def merged(self, words: np.ndarray, old: np.ndarray) -> np.ndarray:
        """words where threads are active and the guard holds, elsewhere the old ones."""
        taken = self.condition
        new = np.where(self.active & (taken == 1), words, old)
        for t in np.flatnonzero(self.active & (taken < 0)):
            new[t] = self.formulas.chosen(int(taken[t]), int(words[t]), int(old[t]))
        return new

    def mapped(self, function: Callable[..., int], *words: np.ndarray) -> np.ndarray:
        """function of the words of each thread."""
        cache: dict[tuple[int, ...], int] = {}
        out = []
        for key in zip(*(w.tolist() for w in words), strict=True):
            if key not in cache:
                cache[key] = function(*key)
            out.append(cache[key])
        return np.array(out, np.int64)

    # --------------------------------------------------------------------------------------------- steps

    def run(self) -> None:
        """Run until every thread has ended."""
        at = np.zeros(self.threads, np.int64)
        code = self.program.code
        for _ in range(MOST_STEPS):
            if not self.alive.any():
                return
            here = int(at[self.alive].min())
            self.active = self.alive & (at == here)
            ins = code[here]
            self.condition = self.read(ins.guard) if ins.guard else np.ones(self.threads, np.int64)
            at[self.active] += 1
            try:
                self.step(ins, here, at)
            except (Unknown, integers.NotKnown, KeyError) as why:
                raise Unknown(f"{ins.line}: {why}") from None
        raise Unknown(f"more than {MOST_STEPS} steps")

    def step(self, ins: Instruction, here: int, at: np.ndarray) -> None:
        """One instruction, for the threads that are active."""
        op = ins.op[1:] if ins.op.startswith("U") and ins.op[1:] in integers.TABLE else ins.op
        if op in IGNORED:
            return
        if op == "EXIT":
            self.alive &= ~(self.active & self.decided())
        elif op == "BRA":
            self.branch(ins, here, at)
        elif op in ("LDG", "STG", "LDS", "STS"):
            (load if op[0] == "L" else store)(self, ins)
        elif op in ("LDSM", "STSM"):
            matrices(self, ins)
        elif op in ("LDL", "STL"):
            spill(self, ins)
        elif op == "SHFL":
            self.exchange(ins)
        elif op in floats.TABLE:
            floats.TABLE[op](self, ins)
        elif op in integers.TABLE:
            integers.TABLE[op](self, ins)
        else:
            raise Unknown("an instruction that is not known here")

    def decided(self) -> np.ndarray:
        """Whether the guard holds, which must be known."""
        if (self.condition[self.active] < 0).any():
            raise Unknown("a guard that is no number")
        return self.condition == 1

    def branch(self, ins: Instruction, here: int, at: np.ndarray) -> None:
        """Go to a label.  Where floats decide, a way around a call is taken: the call is for rare numbers."""
        *flags, label = ins.operands
        target = self.program.labels[label.name]
        taken = self.condition
        for flag in flags:
            taken = self.mapped(self.formulas.both, taken, self.read(flag))
        if (taken[self.active] < 0).any():
            between = self.program.code[here + 1 : target]
            if target <= here or not any(i.op == "CALL" for i in between):
                raise Unknown("a branch on what is no number")
            taken = np.ones(self.threads, np.int64)
        at[self.active & (taken == 1)] = target

    def exchange(self, ins: Instruction) -> None:
        """SHFL: a word of another thread of the warp."""
        into, to, source, by, _limit = ins.operands
        lane = self.lanes % 32
        k = integers.known(self.read(by))
        (how,) = ins.flags & {"BFLY", "IDX", "UP", "DOWN"}
        other = {"BFLY": lane ^ k, "IDX": k % 32, "UP": lane - k, "DOWN": lane + k}[how]
        inside = (other >= 0) & (other < 32)
        other = np.where(inside, other, lane)
        words = self.read(source)[self.lanes - lane + other]
        self.write(into, inside.astype(np.int64))
        self.write(to, words)
