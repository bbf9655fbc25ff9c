"""Float arithmetic as formulas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ci.sass.integers import NotKnown, joined
from ci.sass.text import float_bits, float_of

if TYPE_CHECKING:
    from ci.sass.machine import Block
    from ci.sass.text import Instruction

ROUNDED = frozenset({"FTZ", "SAT", "RM", "RP", "RZ"})
"""Modifiers that change a result."""
INFINITY = 0x7F800000


def name_of(ins: Instruction, *others: str) -> str:
    """An operation with the modifiers that change its result."""
    return " ".join([ins.op, *sorted(ins.flags & (ROUNDED | set(others)))])


def add(block: Block, ins: Instruction) -> None:
    to, a, b = ins.operands
    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    name = name_of(ins)
    block.write(to, block.mapped(lambda p, q: block.formulas.sum(name, p, q), x, y))


def multiply(block: Block, ins: Instruction) -> None:
    to, a, b = ins.operands
    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    name = name_of(ins)
    block.write(to, block.mapped(lambda p, q: block.formulas.product(name, p, q), x, y))


def multiply_add(block: Block, ins: Instruction) -> None:
    to, *sources = ins.operands
    words = [block.read(o, as_float=True) for o in sources]
    name = name_of(ins)
    block.write(to, block.mapped(lambda p, q, r: block.formulas.multiply_add(name, p, q, r), *words))


def extreme(block: Block, ins: Instruction) -> None:
    """FMNMX: the smaller where its predicate holds, the larger elsewhere."""
    to, a, b, which = ins.operands
    name = name_of(ins, "NAN")

    def one(p: int, q: int, smaller: int) -> int:
        if smaller < 0:
            raise NotKnown("which extreme is meant")
        return block.formulas.of(f"{name} {'smaller' if smaller else 'larger'}", *sorted((p, q)))

    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    block.write(to, block.mapped(one, x, y, block.read(which)))


def choose(block: Block, ins: Instruction) -> None:
    to, a, b, p = ins.operands
    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    block.write(to, block.mapped(block.formulas.chosen, block.read(p), x, y))


def compare(block: Block, ins: Instruction) -> None:
    first, second, a, b, before = ins.operands
    (how,) = ins.flags - {"AND", "OR", "FTZ"}
    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    found = block.mapped(lambda p, q: block.formulas.compared(how, p, q), x, y)
    joined(block, ins, first, second, found, block.read(before))


def compare_to_number(block: Block, ins: Instruction) -> None:
    """FSET.BF: 1.0 where a comparison holds, 0 elsewhere."""
    to, a, b, before = ins.operands
    if "BF" not in ins.flags or "AND" not in ins.flags:
        raise NotKnown("a comparison as a whole number")
    (how,) = ins.flags - {"AND", "FTZ", "BF"}
    f = block.formulas

    def one(p: int, q: int, r: int) -> int:
        return f.chosen(f.both(f.compared(how, p, q), r), float_bits(1.0), 0)

    x, y = block.read(a, as_float=True), block.read(b, as_float=True)
    block.write(to, block.mapped(one, x, y, block.read(before)))


def function(block: Block, ins: Instruction) -> None:
    to, a = ins.operands
    name = " ".join([ins.op, *sorted(ins.flags)])
    x = block.read(a, as_float=True)

    def one(p: int) -> int:
        # of a number it begins a division of whole numbers, which corrects the last bits of any reciprocal
        number = name == "MUFU RCP" and 0 < p < INFINITY
        return float_bits(1.0 / float_of(p)) if number else block.formulas.of(name, p)

    block.write(to, block.mapped(one, x))


def pack(block: Block, ins: Instruction) -> None:
    """F2FP: two floats rounded to 16 bits, the second in the low half; F2F: one, beside a 0."""
    to, *sources = ins.operands
    name = " ".join(["round", *sorted(ins.flags & {"BF16", "F16"})])
    words = [block.read(o, as_float=True) for o in sources]
    x, y = words if ins.op == "F2FP" else (np.zeros_like(words[0]), words[0])

    def rounded(p: int) -> int:
        return 0 if p == 0 else block.formulas.of(name, p)

    block.write(to, block.mapped(lambda p, q: block.memory.joined(rounded(q), rounded(p)), x, y))


def widen(block: Block, ins: Instruction) -> None:
    """HADD2.F32: a float16 as a float32."""
    to, a, b = ins.operands
    if "F32" not in ins.flags or not a.name.endswith("RZ"):
        raise NotKnown("arithmetic in 16 bits")
    x = block.plain(b, 0, False)
    which = b.half or 0
    block.write(to, block.mapped(lambda p: block.formulas.of("widened", block.memory.half(p, which)), x))


TABLE = {
    "FADD": add, "FMUL": multiply, "FFMA": multiply_add, "FMNMX": extreme, "FSEL": choose, "FSETP": compare,
    "FSET": compare_to_number, "MUFU": function, "F2FP": pack, "F2F": pack, "HADD2": widen,
}  # fmt: skip
