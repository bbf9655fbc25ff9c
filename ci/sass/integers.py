"""Whole numbers and predicates: computed where they are known, formulas where a float's bits are in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ci.sass.text import Operand, float_bits

if TYPE_CHECKING:
    from ci.sass.machine import Block
    from ci.sass.text import Instruction

WORD = 0xFFFF_FFFF


class NotKnown(Exception):
    """A whole number that depends on a float's bits."""


def known(words: np.ndarray) -> np.ndarray:
    """Words that must be numbers; those of threads that do not run are any."""
    return np.where(words < 0, 0, words)


def signed(words: np.ndarray) -> np.ndarray:
    return np.where(words >= 1 << 31, words - (1 << 32), words)


def registers(ins: Instruction) -> list[Operand]:
    return [o for o in ins.operands if o.kind != "predicate"]


def whole(block: Block, o: Operand, more: int = 0) -> np.ndarray:
    """An operand that must be a number in every thread that runs."""
    words = block.read(o, more)
    if (words[block.active & (block.condition != 0)] < 0).any():
        raise NotKnown("a whole number that depends on a float's bits")
    return known(words)


def wide(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Two words as one number of 64 bits, among Python's integers."""
    return low.astype(object) + (high.astype(object) << 32)


def pair(block: Block, o: Operand) -> np.ndarray:
    """A register and the next as one number of 64 bits."""
    return wide(whole(block, o), whole(block, o, 1))


def split_off(ins: Instruction, count: int) -> tuple[Operand, list[Operand], list[Operand], list[Operand]]:
    """(to, predicates written, sources, predicates read) of an instruction with `count` sources."""
    to, *rest = ins.operands
    written = []
    while rest and rest[0].kind == "predicate":
        written.append(rest.pop(0))
    return to, written, rest[:count], rest[count:]


def move(block: Block, ins: Instruction) -> None:
    to, *rest = ins.operands
    block.write(to, block.read(rest[0]))


def wide_move(block: Block, ins: Instruction) -> None:
    """CS2R: 64 bits of a special register, 32 with .32."""
    to, source = ins.operands
    for k in range(1 if "32" in ins.flags else 2):
        block.write(to, block.read(source), k)


def load_constant(block: Block, ins: Instruction) -> None:
    to, source = ins.operands
    words = [block.read(source, k) for k in range(2 if "64" in ins.flags else 1)]
    for k, w in enumerate(words):
        block.write(to, w, k)


def half_constants(block: Block, ins: Instruction) -> None:
    """HFMA2 as a move of two halves."""
    to, a, b, *halves = ins.operands
    if not a.name.endswith("RZ") or not b.name.endswith("RZ") or any(h.kind != "number" for h in halves):
        raise NotKnown("arithmetic in 16 bits")
    high, low = (int(np.float16(h.value).view(np.uint16)) for h in halves)
    block.write(to, np.full(block.threads, high << 16 | low))


def computed(block: Block, ins: Instruction, function: Callable[..., int], *words: np.ndarray) -> np.ndarray:
    """function of the words in each thread, by cases where predicates of floats choose between numbers."""
    name = " ".join([ins.op, *sorted(ins.flags)])
    return block.mapped(lambda *w: block.formulas.computed(name, function, w), *words)


def add(block: Block, ins: Instruction) -> None:
    """IADD3, VIADD and IADD: a sum with carries in and out."""
    to, written, sources, read = split_off(ins, 3 if ins.op.endswith("IADD3") else 2)
    words = [block.read(s) for s in sources]
    if not written and "X" not in ins.flags:
        block.write(to, computed(block, ins, lambda *w: sum(w) & WORD, *words))
        return
    # -x and ~x are words already; a difference carries where it does not borrow
    total = sum(whole(block, s) for s in sources)
    if "X" in ins.flags:
        total = total + sum(known(block.read(p)) for p in read)
    block.write(to, total & WORD)
    for p in written[:1]:
        block.write(p, (total >> 32 != 0).astype(np.int64))


def multiply_add(block: Block, ins: Instruction) -> None:
    to, written, (a, b, c), read = split_off(ins, 3)
    flags = ins.flags
    is_move = "MOV" in flags or a.name.endswith("RZ") or b.name.endswith("RZ")
    if is_move and "WIDE" not in flags and not written and not read:
        # of a float maybe
        block.write(to, block.read(c))
        return
    if "U32" in flags and b.kind == "number" and b.value == 0x10000 and c.name.endswith("RZ"):
        words = block.read(a)
        block.write(to, block.mapped(lambda w: shifted_half(block, w), words))
        return
    if not written and not read and flags.isdisjoint({"WIDE", "HI"}):
        # the low word of a product, signed or not
        words = [block.read(o) for o in (a, b, c)]
        block.write(to, computed(block, ins, lambda p, q, r: (p * q + r) & WORD, *words))
        return
    x, y = whole(block, a), whole(block, b)
    if "U32" not in flags:
        x, y = signed(x), signed(y)
    # Python's integers: products of 64 bits
    products = x.astype(object) * y.astype(object)
    if "WIDE" in flags:
        third = pair(block, c)
        total = products + third
        pairs = zip(products, third, strict=True)
        carry = np.array([int((int(p) & (1 << 64) - 1) + int(t) >> 64 != 0) for p, t in pairs])
        block.write(to, (total & WORD).astype(np.int64))
        block.write(to, ((total >> 32) & WORD).astype(np.int64), 1)
        for p in written[:1]:
            block.write(p, carry)
        return
    if "HI" in flags:
        total = (products + pair(block, c) >> 32 & WORD).astype(np.int64)
    else:
        total = (products & WORD).astype(np.int64) + whole(block, c)
    if "X" in flags:
        total = total + sum(known(block.read(p)) for p in read)
    block.write(to, total & WORD)
    for p in written[:1]:
        block.write(p, (total >> 32 != 0).astype(np.int64))


def shifted_half(block: Block, word: int, left: bool = True) -> int:
    """A word's low half in the place of the high one, or the reverse."""
    memory = block.memory
    return memory.joined(0, memory.half(word, 0)) if left else memory.joined(memory.half(word, 1), 0)


def address(block: Block, ins: Instruction) -> None:
    """LEA: a sum of a shifted number, its high word with .HI."""
    high = "HI" in ins.flags
    to, written, sources, read = split_off(ins, 3 if not high else 4)
    if high and "SX32" in ins.flags:
        a, c, by = sources[:3]
        read = sources[3:] + read
        x = signed(whole(block, a)).astype(object)
    elif high:
        a, c, above, by = sources
        x = wide(whole(block, a), whole(block, above))
    else:
        a, c, by = sources
        if not written and not read:
            n, words = int(by.value), [block.read(o) for o in (a, c)]
            block.write(to, computed(block, ins, lambda p, q: ((p << n) + q) & WORD, *words))
            return
        x = whole(block, a).astype(object)
    k = int(by.value)
    shifted = (x << k) >> 32 if high else x << k
    total = (shifted & WORD).astype(np.int64) + whole(block, c)
    if "X" in ins.flags:
        total = total + sum(known(block.read(p)) for p in read)
    block.write(to, total & WORD)
    for p in written[:1]:
        block.write(p, (total >> 32 != 0).astype(np.int64))


def shift(block: Block, ins: Instruction) -> None:
    to, low, by, high = ins.operands
    k = whole(block, by) & 31 if "W" in ins.flags else whole(block, by)
    flags = ins.flags
    simple = ("L" in flags and "HI" not in flags) or ("U32" in flags and "HI" in flags)
    if simple and (k == k[0]).all():
        by, left = int(k[0]), "L" in flags
        words = block.read(low if left else high)
        if by == 16:
            out = block.mapped(lambda w: shifted_half(block, w, left), words)
        else:
            out = computed(block, ins, lambda x: (x << by if left else x >> by) & WORD, words)
    elif "L" in flags:
        if "HI" in flags:
            both = wide(whole(block, low), whole(block, high))
            out = np.array([int(v) << int(n) >> 32 & WORD for v, n in zip(both, k, strict=True)])
        else:
            out = np.where(k < 32, whole(block, low) << np.minimum(k, 31) & WORD, 0)
    elif "HI" in flags:
        x = whole(block, high)
        out = np.where(k < 32, x >> np.minimum(k, 31), 0)
        if "S32" in flags:
            out = signed(x) >> np.minimum(k, 31) & WORD
    else:
        both = wide(whole(block, low), whole(block, high))
        out = np.array([int(v) >> int(n) & WORD for v, n in zip(both, k, strict=True)])
    block.write(to, out)


def extend(block: Block, ins: Instruction) -> None:
    """SGXT: the low bits of a number, signed or not."""
    to, a, bits = ins.operands
    k = int(bits.value)
    x = whole(block, a) & (1 << k) - 1
    if "U32" not in ins.flags:
        x = np.where(x >> (k - 1) & 1, x - (1 << k), x) & WORD
    block.write(to, x)


def logic(block: Block, ins: Instruction) -> None:
    """LOP3: a table of three bits, applied to each bit."""
    to, written, (a, b, c, table), _read = split_off(ins, 4)
    if ins.operands[0].kind == "predicate":
        written, to = [ins.operands[0]], ins.operands[1]
        a, b, c, table = ins.operands[2:6]
    lut, f = int(table.value), block.formulas

    def bits(x: int, y: int, z: int) -> int:
        return sum(
            ((x if i & 4 else ~x) & (y if i & 2 else ~y) & (z if i & 1 else ~z)) & WORD
            for i in range(8) if lut >> i & 1
        )  # fmt: skip

    def one(x: int, y: int, z: int) -> int:
        if lut == 0xC0 and y in (0xFFFF, 0xFFFF0000) and x < 0 and not f.is_number(x):
            return block.memory.joined(*(block.memory.half(x, k) if y >> 16 * k & 1 else 0 for k in (0, 1)))
        return f.computed(f"LOP3 {lut:#x}", bits, (x, y, z))

    out = block.mapped(one, *(block.read(o) for o in (a, b, c)))
    block.write(to, out)
    for p in written[:1]:
        truth = block.mapped(lambda w: f.computed("is not 0", lambda x: int(x != 0), (w,), True), out)
        block.write(p, truth)


def predicate_logic(block: Block, ins: Instruction) -> None:
    """PLOP3: a table of three predicates."""
    first, second, a, b, c, table, other = ins.operands
    words = [block.read(o) for o in (a, b, c)]
    for to, lut in ((first, int(table.value)), (second, int(other.value))):
        block.write(to, block.mapped(lambda x, y, z, lut=lut: looked_up(block, lut, x, y, z), *words))


def looked_up(block: Block, lut: int, *bits: int) -> int:
    """The entry of a table of three predicates, which may be formulas."""
    f = block.formulas
    found = 0
    for i in range(8):
        if lut >> i & 1:
            term = 1
            for k, bit in enumerate(bits):
                term = f.both(term, bit if i >> (2 - k) & 1 else f.negated_truth(bit))
            found = f.either(found, term)
    return found


def compare(block: Block, ins: Instruction) -> None:
    """ISETP: a comparison of whole numbers, joined to a predicate."""
    first, second, a, b, *rest = ins.operands
    (how,) = ins.flags & {"LT", "LE", "GT", "GE", "EQ", "NE"}
    x, y = block.read(a), block.read(b)
    before = block.read(rest[0])
    f, name = block.formulas, " ".join([ins.op, *sorted(ins.flags)])

    def one(p: int, q: int) -> int:
        if "U32" not in ins.flags:
            p, q = (v - (1 << 32) if v >= 1 << 31 else v for v in (p, q))
        return int({"LT": p < q, "LE": p <= q, "GT": p > q, "GE": p >= q, "EQ": p == q, "NE": p != q}[how])

    if "EX" in ins.flags:
        # the high words, with what the low ones said: it decides where these are equal
        x, y = whole(block, a), whole(block, b)
        equal, low = (x == y).astype(np.int64), block.read(rest[1])
        found = block.mapped(lambda p, q, e, w: w if e else one(p, q), x, y, equal, low)
    else:
        found = block.mapped(lambda p, q: f.computed(name, one, (p, q), True), x, y)
    joined(block, ins, first, second, found, before)


def joined(block: Block, ins: Instruction, first, second, found: np.ndarray, before: np.ndarray) -> None:
    """Write a comparison and its negation, each joined to the predicate before."""
    f = block.formulas
    if "AND" in ins.flags:
        join = f.both
    elif "OR" in ins.flags:
        join = f.either
    else:
        raise NotKnown("how predicates are joined")
    block.write(first, block.mapped(join, found, before))
    block.write(second, block.mapped(lambda p, q: join(f.negated_truth(p), q), found, before))


def select(block: Block, ins: Instruction) -> None:
    to, a, b, p = ins.operands
    block.write(to, block.mapped(block.formulas.chosen, block.read(p), block.read(a), block.read(b)))


def of_mask(mask: Operand) -> list[int]:
    """The numbers of the predicates of a mask."""
    return [k for k in range(7) if int(mask.value) >> k & 1]


def gather(block: Block, ins: Instruction) -> None:
    """P2R: predicates of a mask as the bits of a register."""
    to, _pr, _old, mask = ins.operands
    chosen = of_mask(mask)
    words = [block.register(f"P{k}") for k in chosen]

    def bits(*found: int) -> int:
        total = 0
        for k, bit in zip(chosen, found, strict=True):
            word = block.formulas.chosen(bit, 1 << k, 0)
            total = block.formulas.computed("P2R", lambda x, y: x | y, (total, word))
        return total

    block.write(to, block.mapped(bits, *words))


def scatter(block: Block, ins: Instruction) -> None:
    """R2P: predicates of a mask from the bits of a register."""
    _pr, source, mask = ins.operands
    words, f = block.read(source), block.formulas
    for k in of_mask(mask):

        def bit(word: int, k: int = k) -> int:
            return f.computed(f"bit {k}", lambda x: x >> k & 1, (word,), True)

        block.write(Operand("predicate", f"P{k}"), block.mapped(bit, words))


def to_float(block: Block, ins: Instruction) -> None:
    """I2FP, and I2F of a division: a whole number as a float32, .RP upwards."""
    to, source = ins.operands
    x = whole(block, source)
    is_signed = "S32" in ins.flags if ins.op == "I2FP" else "U32" not in ins.flags
    x = signed(x) if is_signed else x

    def one(value: int) -> int:
        near = np.float32(value)
        if "RP" in ins.flags and int(near) < value:
            near = np.nextafter(near, np.float32(np.inf))
        return float_bits(near)

    block.write(to, np.array([one(v) for v in x.tolist()], np.int64))


def to_whole(block: Block, ins: Instruction) -> None:
    """F2I of a division: a float32 of 0 or more, cut off."""
    to, source = ins.operands
    if not {"U32", "TRUNC"} <= ins.flags:
        raise NotKnown("a float as a whole number, rounded or signed")
    x = whole(block, source).astype(np.uint32).view(np.float32)
    block.write(to, np.clip(x.astype(np.float64), 0, WORD).astype(np.int64))


def magnitude(block: Block, ins: Instruction) -> None:
    """IABS: the absolute value of a signed number."""
    to, source = ins.operands
    block.write(to, np.abs(signed(whole(block, source))))


def permute(block: Block, ins: Instruction) -> None:
    """PRMT: four bytes of two registers."""
    to, a, how, b = ins.operands
    selector = int(how.value) if how.kind == "number" else None
    words = block.read(a), block.read(b), block.read(how)

    def bytes_of(x: int, y: int, s: int) -> int:
        picks = [s >> 4 * k & 15 for k in range(4)]
        if min(x, y) >= 0:
            both = x | y << 32
            found = 0
            for k, pick in enumerate(picks):
                byte = both >> 8 * (pick & 7) & 255
                found |= (255 if byte & 128 else 0) << 8 * k if pick & 8 else byte << 8 * k
            return found
        halves = []
        for low, high in (picks[:2], picks[2:]):
            if low % 2 or high != low + 1 or high > 7:
                return block.formulas.of("PRMT", s, x, y)
            halves.append(block.memory.half((x, y)[low // 4], low // 2 % 2))
        return block.memory.joined(*halves)

    if selector is None and (words[2][block.active] < 0).any():
        raise NotKnown("a permutation that is no number")
    block.write(to, block.mapped(bytes_of, *words))


TABLE = {
    "MOV": move, "CS2R": wide_move, "S2R": move, "S2UR": move, "R2UR": move, "LDC": load_constant,
    "HFMA2": half_constants, "IADD3": add, "IADD": add, "VIADD": add, "IMAD": multiply_add, "LEA": address,
    "SHF": shift, "SGXT": extend, "LOP3": logic, "PLOP3": predicate_logic, "ISETP": compare, "SEL": select,
    "P2R": gather, "R2P": scatter, "PRMT": permute, "I2FP": to_float, "I2F": to_float,
    "F2I": to_whole, "IABS": magnitude,
}  # fmt: skip
"""Instructions on whole numbers; those of the uniform registers have the same names behind a U."""
