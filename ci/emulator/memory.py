"""Global memory: one arena in which everything lies between unmapped guard pages, and what reads and
writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ci.emulator.registers import LANES, M0, Operand, Waves, bits_of, write
from ci.emulator.text import Instruction
from ci.emulator.vector import understood

Array = np.ndarray
Action = Callable[[Waves], None]
BASE = 0x7F10_0000_0000
GUARD = 1 << 16
FORWARD = slice(None)
"""Lanes from the first to the last."""
NARROW = {"ubyte": 1, "sbyte": 1, "ushort": 2, "sshort": 2, "short": 2, "byte": 1}
WORDS = {"dword": 1, "dwordx2": 2, "dwordx3": 3, "dwordx4": 4, "dwordx8": 8, "dwordx16": 16}


class Finding(Exception):
    """A check without an expected value failed; `kind` says which."""

    def __init__(self, kind: str, ins: Instruction, what: str):
        super().__init__(f"{kind}: {what} at {ins}")
        self.kind = kind


class Arena:
    """Bytes at addresses; only regions are mapped.

    An access begins where an element does.  A dword of two halfwords may begin at either: Linux lets gfx9
    access memory unaligned (amdkfd, `update_qpd_v9`), and LLVM joins loads because it does (AMDGPU target,
    `initializeSubtargetDependencies`).  One that begins inside a float32 has a wrong address.
    """

    def __init__(self, regions: dict[str, bytes | Array], elements: dict[str, int] | None = None):
        """elements: bytes of the smallest element of a region, a power of two; 4 where it is not named."""
        self.places: dict[str, tuple[int, int]] = {}
        size = GUARD
        for name, content in regions.items():
            self.places[name] = size, len(content)
            size += -(-len(content) // GUARD) * GUARD + GUARD
        self.data = np.zeros(size, np.uint8)
        self.words = self.data.view(np.uint32)
        self.element = np.zeros(size, np.uint8)  # 0 where nothing is mapped
        for name, content in regions.items():
            begin, length = self.places[name]
            self.data[begin : begin + length] = np.frombuffer(content, np.uint8)
            self.element[begin : begin + length] = (elements or {}).get(name, 4)

    def address(self, name: str) -> int:
        return BASE + self.places[name][0]

    def content(self, name: str) -> Array:
        begin, length = self.places[name]
        return self.data[begin : begin + length]

    def index(self, ins: Instruction, address: Array, size: int, active: Array) -> Array:
        """Places in `data` of the active accesses, 0 of the others."""
        at = np.where(active, address.astype(np.int64) - BASE, 0)
        inside = (at >= 0) & (at <= len(self.data) - size)
        safe = np.where(inside, at, 0)
        element = self.element[safe]
        wrong = active & ~(inside & (element > 0) & (self.element[safe + size - 1] > 0))
        if wrong.any():
            place = tuple(int(k[0]) for k in np.nonzero(wrong))
            raise Finding("address", ins, self.described(int(at[place]), size, place))
        within = active & (safe & (np.minimum(element, size) - 1) != 0)
        if within.any():
            place = tuple(int(k[0]) for k in np.nonzero(within))
            what = self.described(int(at[place]), size, place)
            raise Finding("address", ins, f"{what}, inside an element of {element[place]}")
        return safe

    def gathered(self, at: Array, size: int) -> Array:
        """Zero-extended values at places of `data`."""
        if size == 4 and not (at & 3).any():
            return self.words[at >> 2]
        return sum(self.data[at + k].astype(np.uint32) << np.uint32(8 * k) for k in range(size))

    def described(self, at: int, size: int, place: tuple[int, ...]) -> str:
        """Where an access lies, in words."""
        name = min(self.places, key=lambda n: min(abs(at - self.places[n][0]), abs(at - sum(self.places[n]))))
        begin, length = self.places[name]
        return f"{size} bytes at offset {at - begin} of {name}, which has {length} (wave and lane {place})"

    def load(self, ins: Instruction, address: Array, size: int, active: Array) -> Array:
        """Zero-extended values, 0 where not active."""
        at = self.index(ins, address, size, active)
        return np.where(active, self.gathered(at, size), np.uint32(0))

    def store(
        self, ins: Instruction, w: Waves, address: Array, size: int, active: Array, values: Array
    ) -> None:
        at = self.index(ins, address, size, active)[active]
        values = np.broadcast_to(values, active.shape)[active] & np.uint32((1 << 8 * size) - 1)
        order = w.world.order
        if size == 4 and not (at & 3).any():
            self.words[at[order] >> 2] = values[order]
        else:
            for byte in range(size):
                self.data[at[order] + byte] = (values[order] >> np.uint32(8 * byte)).astype(np.uint8)
        lost = self.gathered(at, size) != values
        if lost.any():
            number = np.broadcast_to((w.group * w.world.waves + w.wave)[:, None], active.shape)[active]
            settled(ins, at, number, order, lost)


def settled(ins: Instruction, at: Array, wave: Array, order: slice, lost: Array) -> None:
    """Values that lanes stored to one place and that did not remain.

    Layouts that repeat compute a number in several lanes, each of which may sum in another order: which
    lane's
    value remains is not said, so both are tried.  Waves may not disagree.

    Raises:
        Finding: values of several waves met.
    """
    _, first, place = np.unique(at, return_index=True, return_inverse=True)
    owner = np.zeros(len(first), wave.dtype)
    owner[place[order]] = wave[order]
    if (owner[place] != wave)[lost].any():
        raise Finding("race", ins, "waves store different values to one place")


@dataclass
class Landing:
    """The data that a load writes to LDS once it is waited for."""

    ins: Instruction
    group: Array
    wave: Array
    address: Array
    words: list[Array]
    active: Array

    def chosen(self, which: Array) -> Landing:
        return Landing(
            self.ins, self.group[which], self.wave[which], self.address[which],
            [word[which] for word in self.words], self.active[which],
        )  # fmt: skip


# ---------------------------------------------------------------------------------------------- scalar


def scalar_load(ins: Instruction, operands: list[Operand]) -> Action:
    """s_load_dword and wider."""
    understood(ins, {"glc"})
    to, base, offset = operands
    count = WORDS[ins.op.removeprefix("s_load_")]
    shift = bits_of(offset, "u")

    def run(w: Waves) -> None:
        low, high = w.s[base.index].astype(np.int64), w.s[base.index + 1].astype(np.int64)
        address = ((low | high << 32) + shift(w)[:, 0].astype(np.int64)) & ~3
        active = np.ones(len(address), bool)
        for k in range(count):
            w.s[to.index + k] = w.world.memory.load(ins, address + 4 * k, 4, active)

    return run


# --------------------------------------------------------------------------------------------- buffers


def in_range(ins: Instruction, w: Waves, offset: Array, voffset: Array, size: int, limit: Array) -> Array:
    """Active lanes inside a buffer: offsets are unsigned and their sum does not wrap.

    Raises:
        Finding: a sum that is out of range would be inside if it wrapped at 32 bits.  LLVM says of such a
        negative
            register offset that hardware does not take it, even where the immediate makes the sum positive.
    """
    inside = offset + size <= limit
    wrapped = (offset & 0xFFFF_FFFF) + size <= limit
    doubtful = w.active & ~inside & wrapped
    if doubtful.any():
        wave, lane = (int(k[0]) for k in np.nonzero(doubtful))
        negative = int(np.broadcast_to(voffset, doubtful.shape)[wave, lane]) - (1 << 32)
        raise Finding(
            "offset",
            ins,
            f"{int(doubtful.sum())} lanes have a negative register offset ({negative} in lane {lane})",
        )
    return w.active & inside


def buffer(ins: Instruction, operands: list[Operand]) -> Action:
    """buffer_load, buffer_store of dwords, bytes and shorts, and loads into LDS."""
    understood(ins, {"offen", "offset", "lds", "nt", "sc0", "sc1", "glc", "slc"})
    _, direction, kind, *half = ins.op.split("_")
    loads, to_lds = direction == "load", "lds" in ins.modifiers
    if half:
        raise ValueError(f"{ins}: {'_'.join(half)} is unknown")
    data, rest = (None, operands) if to_lds else (operands[0], operands[1:])
    if "offen" not in ins.modifiers:
        rest = [Operand("c", 0, 0, "0"), *rest[-2:]]
    voffset, resource, soffset = rest
    immediate = int(ins.modifiers.get("offset") or "0", 0)
    read_offset, read_base = bits_of(voffset, "u"), bits_of(soffset, "u")
    count, size = WORDS.get(kind, 1), NARROW.get(kind, 4)
    r = resource.index

    def run(w: Waves) -> None:
        if (w.s[r + 1] >> np.uint32(16) & np.uint32(0x3FFF)).any():
            raise ValueError(f"{ins}: a buffer with a stride is not known here")
        base = w.s[r].astype(np.int64) | (w.s[r + 1].astype(np.int64) & 0xFFFF) << 32
        scalar = read_base(w).astype(np.int64)
        limit = w.s[r + 2].astype(np.int64)[:, None] - scalar
        lane_offset = read_offset(w).astype(np.int64)
        offset = lane_offset + immediate
        address = base[:, None] + scalar + offset
        words = []
        for k in range(count):
            active = in_range(ins, w, offset + 4 * k, lane_offset, size, limit)
            place = np.broadcast_to(address + 4 * k, active.shape)
            if loads:
                words.append(extended(kind, w.world.memory.load(ins, place, size, active)))
            else:
                w.world.memory.store(ins, w, place, size, active, w.v[data.index + k])
        if to_lds:
            # all of M0: gfx950 has more LDS than 16 bits reach
            start = w.s[M0].astype(np.int64)[:, None] + immediate
            target = start + 4 * count * np.arange(LANES)
            landing = Landing(ins, w.group, w.wave, target, words, w.active.copy())
            w.late.append((w.waits.issued["vm"], landing))
        elif loads:
            for k, word in enumerate(words):
                write(w, data.index + k, word)

    return run


def extended(kind: str, values: Array) -> Array:
    """Signed short loads carry their sign."""
    if kind in ("sbyte", "sshort"):
        up = np.uint32(24 if kind == "sbyte" else 16)
        return ((values << up).view(np.int32) >> np.int32(up)).view(np.uint32)
    return values


# ----------------------------------------------------------------------------------- global and scratch


def flat(ins: Instruction, operands: list[Operand]) -> Action:
    """global_load and global_store: a 64-bit address, or a scalar one and a 32-bit offset."""
    understood(ins, {"offset", "nt", "sc0", "sc1", "glc", "slc"})
    _, direction, kind = ins.op.split("_")
    loads = direction == "load"
    data, vaddr, saddr = operands if loads else (operands[1], operands[0], operands[2])
    immediate = int(ins.modifiers.get("offset") or "0", 0)
    count, size = WORDS.get(kind, 1), NARROW.get(kind, 4)
    scalar = saddr.kind == "s"
    read = bits_of(vaddr, "u" if scalar else "U")

    def run(w: Waves) -> None:
        address = read(w).astype(np.int64) + immediate
        if scalar:
            low, high = w.s[saddr.index].astype(np.int64), w.s[saddr.index + 1].astype(np.int64)
            address = address + (low | high << 32)[:, None]
        address = np.broadcast_to(address, w.active.shape)
        moved(ins, w, address, data, count, size, kind, loads)

    return run


def scratch(ins: Instruction, operands: list[Operand]) -> Action:
    """scratch_load and scratch_store: addresses are a lane's own."""
    understood(ins, {"offset", "nt"})
    _, direction, kind = ins.op.split("_")
    loads = direction == "load"
    data, vaddr, saddr = operands if loads else (operands[1], operands[0], operands[2])
    immediate = int(ins.modifiers.get("offset") or "0", 0)
    count, size = WORDS.get(kind, 1), NARROW.get(kind, 4)
    reads = [bits_of(o, "u") for o in (vaddr, saddr)]

    def run(w: Waves) -> None:
        own = sum((read(w).astype(np.int64) for read in reads), np.zeros((1, 1), np.int64)) + immediate
        if ((own < 0) | (own + 4 * count > w.world.scratch_bytes)).any():
            raise Finding("address", ins, f"a scratch offset outside {w.world.scratch_bytes} bytes")
        lane = (w.group[:, None] * w.world.waves + w.wave[:, None]) * LANES + np.arange(LANES)
        address = w.world.memory.address("scratch") + lane * w.world.scratch_bytes + own
        moved(ins, w, address, data, count, size, kind, loads)

    return run


def moved(
    ins, w: Waves, address: Array, data: Operand, count: int, size: int, kind: str, loads: bool
) -> None:
    """Words between memory and consecutive registers."""
    memory = w.world.memory
    if loads:
        # all before any is written: the address may be among them
        words = [extended(kind, memory.load(ins, address + 4 * k, size, w.active)) for k in range(count)]
        for k, word in enumerate(words):
            write(w, data.index + k, word)
    else:
        for k in range(count):
            memory.store(ins, w, address + 4 * k, size, w.active, w.v[data.index + k])


KINDS = [*WORDS, *NARROW]
TABLE: dict[str, Callable[[Instruction, list[Operand]], Action]] = {
    **{f"s_load_{k}": scalar_load for k in WORDS},
    **{f"buffer_{d}_{k}": buffer for d in ("load", "store") for k in KINDS},
    **{f"global_{d}_{k}": flat for d in ("load", "store") for k in KINDS},
    **{f"scratch_{d}_{k}": scratch for d in ("load", "store") for k in KINDS},
}
