"""The registers of many waves at once, and operands as functions that read and write them.

A vector register is an array (waves, 64), a scalar one (waves,), both of uint32; a value that is the same for
all lanes broadcasts as (waves, 1) or (1, 1).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ci.emulator import lanes
from ci.emulator.text import Instruction

Array = np.ndarray
LANES = 64
VECTORS = 512
"""v0 to v255, and a0 to a255 after them as far as the descriptor says."""
SCALARS = 128
VCC, M0, EXEC = 106, 124, 126
NAMED = {
    "vcc": (VCC, 2), "vcc_lo": (VCC, 1), "vcc_hi": (VCC + 1, 1), "m0": (M0, 1),
    "exec": (EXEC, 2), "exec_lo": (EXEC, 1), "exec_hi": (EXEC + 1, 1),
}  # fmt: skip
REGISTER = re.compile(r"([vsa])(?:(\d+)|\[(\d+):(\d+)\])$")
MODIFIED = re.compile(r"(neg|sext|abs)\((.*)\)$")
FLOATS = {"f": ("<f", 32), "h": ("<e", 16)}


@dataclass
class Waves:
    """Waves that are at the same instruction."""

    v: Array
    s: Array
    scc: Array
    active: Array
    """EXEC as booleans (waves, 64)."""
    group: Array
    """Workgroup of each, counted within those that run together."""
    wave: Array
    """Number within its workgroup."""
    world: Any
    """What all waves share: memory, LDS, functions."""
    at: int = 0
    """Index of the next instruction."""
    full: bool = True
    """Whether all lanes are active."""
    waits: Any = None
    hazards: Any = None
    late: list = field(default_factory=list)
    """The data that arrives in LDS with a wait."""

    def chosen(self, which: Array) -> Waves:
        """Some of the waves, with registers of their own."""
        copies = self.v[:, which], self.s[:, which], self.scc[which], self.active[which]
        return Waves(
            *(np.ascontiguousarray(c) for c in copies), self.group[which], self.wave[which], self.world,
            self.at, bool(self.active[which].all()), self.waits.copy(), self.hazards.copy(),
            [(n, land.chosen(which)) for n, land in self.late],
        )  # fmt: skip


def joined(parts: list[Waves]) -> Waves:
    """Waves that have met."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    arrays = [
        np.concatenate([getattr(p, name) for p in parts], axis)
        for name, axis in (("v", 1), ("s", 1), ("scc", 0), ("active", 0), ("group", 0), ("wave", 0))
    ]
    return Waves(
        *arrays, first.world, first.at, bool(arrays[3].all()), first.waits, first.hazards, list(first.late)
    )


def packed(mask: Array) -> Array:
    """Booleans (waves, 64) as (2, waves) words."""
    return np.packbits(mask, axis=-1, bitorder="little").view(np.uint32).T


def unpacked(words: Array) -> Array:
    """The inverse."""
    return np.unpackbits(np.ascontiguousarray(words.T).view(np.uint8), axis=-1, bitorder="little").view(bool)


# ------------------------------------------------------------------------------------------- operands


@dataclass(frozen=True)
class Operand:
    """What an operand names: consecutive registers of a kind, or a constant."""

    kind: str
    """v, s, or c."""
    index: int
    """Index of the first register, or the value of a constant."""
    count: int
    text: str
    negative: bool = False
    absolute: bool = False
    signed: bool = False
    """sext: of a part of a register (SDWA)."""

    @property
    def registers(self) -> range:
        """By number: vector registers from 0, scalar ones from VECTORS."""
        if self.kind == "c":
            return range(0)
        base = self.index + (VECTORS if self.kind == "s" else 0)
        return range(base, base + self.count)


def operand(text: str, accumulators: int) -> Operand:
    """An operand of an instruction whose a0 is the vector register `accumulators`.

    Raises:
        ValueError: the text names nothing known here.
    """
    bare, flags = text, {"negative": False, "absolute": False, "signed": False}
    while True:
        if bare.startswith("|"):
            bare, flags["absolute"] = bare[1:-1], True
        elif bare.startswith("-") and not bare[1:2].isdigit():
            bare, flags["negative"] = bare[1:], True
        elif match := MODIFIED.match(bare):
            flags[{"neg": "negative", "abs": "absolute", "sext": "signed"}[match[1]]] = True
            bare = match[2]
        else:
            break
    if match := REGISTER.match(bare):
        first, last = int(match[2] or match[3]), int(match[2] or match[4])
        kind = "s" if match[1] == "s" else "v"
        shift = accumulators if match[1] == "a" else 0
        return Operand(kind, first + shift, last - first + 1, text, **flags)
    if bare in NAMED:
        return Operand("s", *NAMED[bare], text, **flags)
    if re.fullmatch(r"-?(0x[0-9a-f]+|\d+|\d+\.\d*(e[-+]\d+)?)", bare):
        return Operand("c", 0, 0, bare, **flags)
    raise ValueError(f"operand {text!r} is neither a register nor a number")


def constant(text: str, kind: str) -> int:
    """The bits of a constant in an operand of a type: floats as such where the type is one."""
    wide = kind in ("U", "I", "m")
    if "." in text:
        form, _ = ("<d", 64) if wide else FLOATS.get(kind, FLOATS["f"])
        return int.from_bytes(struct.pack(form, float(text)), "little")
    return int(text, 0) & (0xFFFF_FFFF_FFFF_FFFF if wide else 0xFFFF_FFFF)


TYPES: dict[str, type] = {
    "f": np.float32, "u": np.uint32, "i": np.int32, "U": np.uint64, "I": np.int64, "h": np.float16,
    "s": np.uint16, "S": np.int16,
}  # fmt: skip
"""Types of operands by letter; m is a mask of lanes, one bit each in a pair of scalar registers."""


def wide(low: Array, high: Array) -> Array:
    """Two words as one of 64 bits."""
    return (high.astype(np.uint64) << np.uint64(32)) | low


def bits_of(op: Operand, kind: str) -> Callable[[Waves], Array]:
    """How the bits of a vector instruction's source are read, as uint32 or uint64."""
    at, double = op.index, kind in ("U", "I")
    if op.kind == "c":
        value = constant(op.text, kind)
        fixed = np.array([[value]], np.uint64 if double else np.uint32)
        return lambda w: fixed
    if op.count < 1 + double:
        raise ValueError(f"operand {op.text} has fewer registers than its type")
    if op.kind == "v":
        return (lambda w: wide(w.v[at], w.v[at + 1])) if double else (lambda w: w.v[at])
    if double:
        return lambda w: wide(w.s[at], w.s[at + 1])[:, None]
    return lambda w: w.s[at][:, None]


def source(ins: Instruction, op: Operand, kind: str, position: int) -> Callable[[Waves], Array]:
    """How a source is read as its type, with all that modifies it."""
    if kind == "m":
        return mask_of(op)
    read = bits_of(op, kind)
    encoding, number = ins.modifiers.get("encoding"), position
    if encoding == "dpp" and number == 0:
        read = lanes.dpp_source(read, ins.modifiers)
    elif encoding == "sdwa" and f"src{number}_sel" in ins.modifiers:
        read = lanes.selected(read, ins.modifiers[f"src{number}_sel"], op.signed)
    high = half_of(ins, "op_sel", number) if kind in ("h", "s", "S") else 0
    if kind in ("h", "s", "S"):
        return sixteen(read, kind, high, op)
    if kind == "f":
        return floating(read, op)
    if op.negative or op.absolute:
        raise ValueError(f"{ins}: an integer operand with a sign modifier")
    return read if kind in ("u", "U") else lambda w: read(w).view(TYPES[kind])


def floating(read: Callable[[Waves], Array], op: Operand) -> Callable[[Waves], Array]:
    """Bits as float32; a sign modifier works on the bits, of NaN too."""
    keep = np.uint32(0x7FFF_FFFF if op.absolute else 0xFFFF_FFFF)
    flip = np.uint32(0x8000_0000 if op.negative else 0)
    if not (op.absolute or op.negative):
        return lambda w: read(w).view(np.float32)
    return lambda w: ((read(w) & keep) ^ flip).view(np.float32)


def sixteen(read: Callable[[Waves], Array], kind: str, high: int, op: Operand) -> Callable[[Waves], Array]:
    """One half of a register."""
    shift = np.uint32(16 * high)
    keep = np.uint16(0x7FFF if op.absolute else 0xFFFF)
    flip = np.uint16(0x8000 if op.negative else 0)
    return lambda w: (((read(w) >> shift).astype(np.uint16) & keep) ^ flip).view(TYPES[kind])


def half_of(ins: Instruction, name: str, position: int, default: int = 0) -> int:
    """An entry of op_sel:[0,1] and the like."""
    listed = ins.modifiers.get(name)
    if listed is None:
        return default
    entries = listed.strip("[]").split(",")
    return int(entries[position]) if position < len(entries) else default


def mask_of(op: Operand) -> Callable[[Waves], Array]:
    """Lanes named by a pair of scalar registers."""
    if op.kind == "c":
        fixed = np.array([[bool(int(op.text, 0))]])
        return lambda w: fixed
    at = op.index
    if at == EXEC:
        return lambda w: w.active
    return lambda w: unpacked(w.s[at : at + 2])


# ---------------------------------------------------------------------------------------- destinations


def write(w: Waves, at: int, bits: Array) -> None:
    """A vector register, in the active lanes."""
    if w.full:
        w.v[at] = bits
    else:
        np.copyto(w.v[at], bits, where=w.active)


def write_scalar(w: Waves, at: int, words: Array) -> None:
    """A scalar register, or two from 64 bits."""
    if words.dtype == np.uint64:
        w.s[at] = words.astype(np.uint32)
        w.s[at + 1] = (words >> np.uint64(32)).astype(np.uint32)
    else:
        w.s[at] = words.view(np.uint32)
    if at in (EXEC, EXEC + 1) or (at == EXEC - 1 and words.dtype == np.uint64):
        exec_changed(w)


def write_mask(w: Waves, at: int, mask: Array) -> None:
    """Lanes into a pair of scalar registers; inactive ones are 0."""
    mask = mask & w.active
    w.s[at : at + 2] = packed(mask)
    if at == EXEC:
        exec_changed(w)


def exec_changed(w: Waves) -> None:
    w.active = unpacked(w.s[EXEC : EXEC + 2])
    w.full = bool(w.active.all())


def bits32(values: Array) -> Array:
    """A result of 32 bits or fewer as uint32."""
    if values.dtype == np.uint32:
        return values
    if values.dtype.itemsize == 4:
        return np.ascontiguousarray(values).view(np.uint32)
    if values.dtype.itemsize == 2:
        return np.ascontiguousarray(values).view(np.uint16).astype(np.uint32)
    raise TypeError(f"a result of {values.dtype} is not one register")
