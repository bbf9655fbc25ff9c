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
    """Global memory by halves of words: what kernels wrote, and what was there before."""

    formulas: Formulas
    before: Callable[[int], int]
    """The half at an address, as it was before any launch: a number of 16 bits or a formula."""
    written: dict[int, int] = field(default_factory=dict)

    def half_at(self, address: int) -> int:
        return self.written[address] if address in self.written else self.before(address)

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


def shared_half(block: Block, address: int) -> int:
    """The half at an address of shared memory; one that was never written is a formula of its own."""
    if address in block.shared:
        return block.shared[address]
    return block.memory.half(block.formulas.of("unwritten", address & ~3), address >> 1 & 1)


def shared_at(block: Block, address: int) -> int:
    """A word of shared memory."""
    return block.memory.joined(shared_half(block, address), shared_half(block, address + 2))


def share(block: Block, address: int, word: int, halves: int = 2) -> None:
    """Store a word, or its low half, to shared memory."""
    for which in range(halves):
        block.shared[address + 2 * which] = block.memory.half(word, which)


def bits_of(ins: Instruction) -> int:
    if "S16" in ins.flags:
        raise NotKnown("a half whose sign is extended")
    return next((BITS[f] for f in ins.flags if f in BITS), 32)


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
    memory = block.memory
    found = np.zeros((max(bits // 32, 1), block.threads), np.int64)
    for t in runs(block):
        a = int(at[t])
        for k in range(len(found)):
            if is_global:
                low = memory.half_at(a + 4 * k)
                high = 0 if bits == 16 else memory.half_at(a + 4 * k + 2)
                found[k, t] = memory.joined(low, high)
            elif bits == 16:
                found[k, t] = memory.joined(shared_half(block, a), 0)
            elif bits < 16:
                raise NotKnown("a load of a byte from shared memory")
            else:
                found[k, t] = shared_at(block, a + 4 * k)
    for k, words in enumerate(found):
        block.write(to, words, k)


def store(block: Block, ins: Instruction) -> None:
    """STG and STS."""
    to, source = ins.operands
    is_global, bits = ins.op == "STG", bits_of(ins)
    at = places(block, to, is_global)
    words = [block.read(source, k) for k in range(max(bits // 32, 1))]
    memory = block.memory
    for t in runs(block):
        a = int(at[t])
        for k, w in enumerate(words):
            word = int(w[t])
            if is_global:
                memory.written[a + 4 * k] = memory.half(word, 0)
                if bits >= 32:
                    memory.written[a + 4 * k + 2] = memory.half(word, 1)
            elif bits < 16:
                raise NotKnown("a store of a byte to shared memory")
            else:
                share(block, a + 4 * k, word, 1 if bits == 16 else 2)


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
            words = np.array([shared_at(block, int(r)) for r in rows + 4 * (lane % 4)], np.int64)
            block.write(a, words, k)
        return
    runs(block)
    for k in range(count):
        words = block.read(b, k)
        rows = at[block.lanes - lane + 8 * k + lane // 4] + 4 * (lane % 4)
        for address, word in zip(rows.tolist(), words.tolist(), strict=True):
            share(block, address, word)
