"""nvdisasm's listing of one kernel as instructions."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from helion_sinkhorn.machine.mnemonics import SASS

OPERAND = re.compile(
    r"(?P<sign>[-~!]?)(?P<bar>\|?)(?P<name>U?R(?:Z|\d+)|U?P(?:T|\d)|SRZ?(?:_[\w.]+)?|PR)"
    r"(?:\.64|\.reuse|\.U32|\.X4|\.X8|\.H0_H0|\.H1_H1)*\|?(?:\.(?:H0_H0|H1_H1|reuse))*"
)
CONSTANT = re.compile(r"(?P<sign>[-~]?)\|?c\[0x0\]\[(?:(?P<index>U?R\d+)\+?)?(?P<at>0x[0-9a-f]+)?\]\|?")
ADDRESS = re.compile(r"(?:desc\[UR\d+\])?\[(?P<parts>[^\]]*)\]")
NUMBER = re.compile(r"-?0x[0-9a-f]+$")


class Unknown(Exception):
    """An instruction or an operand that is not known here, or a branch on what is no number."""


@dataclass(frozen=True)
class Operand:
    """A register, predicate, place in the constant bank or immediate number, and its modifiers."""

    kind: str
    """"register", "predicate", "constant", "address", "label", "special", or "number" (whole, or a float)."""
    name: str
    value: int | float = 0
    sign: str = ""
    absolute: bool = False
    half: int | None = None
    """Which 16 bits of a register are meant."""
    parts: tuple[Operand, ...] = ()
    """What is added up to an address, or to a place in the constant bank."""


@dataclass(frozen=True)
class Instruction:
    """One instruction: its guard, the mnemonic and its modifiers, and its operands."""

    line: str
    guard: Operand | None
    op: str
    flags: frozenset[str]
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Program:
    """Instructions in order, and the place of each label."""

    code: tuple[Instruction, ...]
    labels: dict[str, int]


def parse(listing: str) -> Program:
    """The instructions of a listing that holds one kernel."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in listing.splitlines():
        found = SASS.match(line)
        if found and found["label"]:
            labels[found["label"]] = len(code)
        elif found:
            guard = operand(found["guard"]) if found["guard"] else None
            op, *flags = found["op"].split(".")
            texts = [t.strip() for t in found["rest"].split(";")[0].split(",")]
            operands = tuple(operand(t) for t in texts if t)
            code.append(Instruction(line.strip(), guard, op, frozenset(flags), operands))
    return Program(tuple(code), labels)


def operand(text: str) -> Operand:
    """One operand as nvdisasm writes it."""
    if "`(" in text:
        return Operand("label", text[text.index("(") + 1 : -1])
    if found := ADDRESS.fullmatch(text):
        return Operand("address", text, parts=tuple(map(operand, filter(None, found["parts"].split("+")))))
    if found := CONSTANT.fullmatch(text):
        parts = (operand(found["index"]),) if found["index"] else ()
        return Operand("constant", "c", int(found["at"] or "0", 16), found["sign"], "|" in text, parts=parts)
    if found := OPERAND.fullmatch(text):
        half = 0 if "H0_H0" in text else 1 if "H1_H1" in text else None
        name = found["name"]
        kind = (
            "special" if name.startswith("SR") or name == "PR"
            else "predicate" if re.match(r"U?P", name) else "register"
        )  # fmt: skip
        return Operand(kind, name, 0, found["sign"], bool(found["bar"]), half)
    if NUMBER.match(text):
        return Operand("number", text, int(text, 16))
    if re.fullmatch(r"B\d+", text):
        return Operand("special", text)
    try:
        return Operand("number", text, float(text.replace("+QNAN", "nan").replace("-QNAN", "-nan")))
    except ValueError:
        raise Unknown(f"an operand that is not known: {text!r}") from None


def float_bits(value: float) -> int:
    """A float32 as its 32 bits."""
    return struct.unpack("<I", struct.pack("<f", value))[0]


def float_of(bits: int) -> float:
    """The float32 of 32 bits."""
    return struct.unpack("<f", struct.pack("<I", bits))[0]
