"""Global and shared memory that hold words and halves of words, known or formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ci.sass.formulas import Formulas
from ci.sass.integers import WORD, NotKnown, known, whole

if TYPE_CHECKING:
    from ci.sass.machine import Block
    from ci.sass.text import Instruction, Operand

BITS = {"U8": 8, "S8": 8, "U16": 16, "64": 64, "128": 128}


@dataclass
class Memory:
    """Global or shared memory by halves of words: what kernels wrote, and what was there before."""

    formulas: Formulas
    before: Callable[[int], int]
    """The half at an address, as it was before any launch: a number of 16 bits or a formula."""
    written: dict[int, int] = field(default_factory=dict)

    def half_at(self, address: int) -> int:
        return self.written[address] if address in self.written else self.before(address)

    def word_at(self, address: int) -> int:
        return self.joined(self.half_at(address), self.half_at(address + 2))

    def write(self, address: int, word: int, halves: int = 2) -> None:
        """Store a word, or its low half."""
        for which in range(halves):
            self.written[address + 2 * which] = self.half(word, which)

    def half(self, word: int, which: int) -> int:
        """The low (0) or high (1) half of a word."""
        if word >= 0:
            return word >> 16 * which & 0xFFFF
        key = self.formulas.key(word)
        if key[0] == "halves" and not self.formulas.turned(word):
            return key[1 + which]
        return self.formulas.of("half", which, word)

    def joined(self, low: int, high: int) -> int:
        """The word of two halves."""
        if low >= 0 and high >= 0:
            return low | high << 16
        if low < 0 and high < 0:
            a, b = self.formulas.key(low), self.formulas.key(high)
            if a[0] == b[0] == "half" and a[2] == b[2] and (a[1], b[1]) == (0, 1):
                return a[2]
        return self.formulas.of("halves", low, high)


def places(block: Block, o: Operand, is_global: bool) -> np.ndarray:
    """The address that an operand names, in every thread."""
    total = np.zeros(block.threads, np.int64)
    for part in o.parts:
        if part.kind == "number":
            value = int(part.value)
            total = total + (value - (1 << 32) if value >= 1 << 31 else value)
            continue
        total = total + whole(block, part)
        if is_global and not part.name.endswith("Z"):
            total = total + (whole(block, part, 1) << 32)
    return total if is_global else total & WORD


def bits_of(ins: Instruction) -> int:
    if "S16" in ins.flags:
        raise NotKnown("a half whose sign is extended")
    return next((BITS[f] for f in ins.flags if f in BITS), 32)


def memory_of(block: Block, is_global: bool, bits: int) -> Memory:
    """What an access of so many bits is made to."""
    if bits < 16 and not is_global:
        raise NotKnown("an access to a byte of shared memory")
    return block.memory if is_global else block.shared


def runs(block: Block) -> list[int]:
    """Threads that make an access; whether they do must be known."""
    condition = block.condition
    if (condition[block.active] < 0).any():
        raise NotKnown("an access under a condition that is no number")
    return np.flatnonzero(block.active & (condition == 1)).tolist()


def load(block: Block, ins: Instruction) -> None:
    """LDG and LDS."""
    to, source = [o for o in ins.operands if o.kind != "predicate"][:2]
    is_global, bits = ins.op == "LDG", bits_of(ins)
    at = places(block, source, is_global)
    memory = memory_of(block, is_global, bits)
    found = np.zeros((max(bits // 32, 1), block.threads), np.int64)
    for t in runs(block):
        a = int(at[t])
        for k in range(len(found)):
            found[k, t] = (
                memory.joined(memory.half_at(a), 0) if bits == 16 else memory.word_at(a + 4 * k)
            )  # fmt: skip
    for k, words in enumerate(found):
        block.write(to, words, k)


def store(block: Block, ins: Instruction) -> None:
    """STG and STS."""
    to, source = ins.operands
    is_global, bits = ins.op == "STG", bits_of(ins)
    at = places(block, to, is_global)
    words = [block.read(source, k) for k in range(max(bits // 32, 1))]
    memory = memory_of(block, is_global, bits)
    for t in runs(block):
        for k, w in enumerate(words):
            memory.write(int(at[t]) + 4 * k, int(w[t]), 2 if bits >= 32 else 1)


def spill(block: Block, ins: Instruction) -> None:
    """LDL and STL: words of a thread's stack, at an address that all threads share."""
    to, source = ins.operands
    place = places(block, source if ins.op == "LDL" else to, False)
    if (place != place[0]).any():
        raise NotKnown("a stack address that differs from thread to thread")
    for k in range(max(bits_of(ins) // 32, 1)):
        name = f"stack {int(place[0]) + 4 * k}"
        empty = np.full(block.threads, block.formulas.of("unwritten", name))
        if ins.op == "LDL":
            block.write(to, block.stack.get(name, empty), k)
        else:
            block.stack[name] = block.merged(block.read(source, k), block.stack.get(name, empty))


def matrices(block: Block, ins: Instruction) -> None:
    """LDSM and STSM: matrices of 8 x 8 halves; thread 4 r + c of a warp holds the word c of row r, and
    thread 8 k + r the address of row r of matrix k."""
    if "T" in ins.flags or "MT88" in ins.flags:
        raise NotKnown("a transposed matrix")
    count = next((int(f) for f in ins.flags if f in ("2", "4")), 1)
    a, b = ins.operands
    loads = ins.op == "LDSM"
    at = known(places(block, b if loads else a, False))
    lane = block.lanes % 32
    if loads:
        for k in range(count):
            rows = at[block.lanes - lane + 8 * k + lane // 4]
            words = np.array([block.shared.word_at(int(r)) for r in rows + 4 * (lane % 4)], np.int64)
            block.write(a, words, k)
        return
    runs(block)
    for k in range(count):
        words = block.read(b, k)
        rows = at[block.lanes - lane + 8 * k + lane // 4] + 4 * (lane % 4)
        for address, word in zip(rows.tolist(), words.tolist(), strict=True):
            block.shared.write(address, word)
