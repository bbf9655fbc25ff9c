"""LDS: one array a workgroup, with the waves that wrote and read each unit since the last barrier."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from ci.emulator import lanes
from ci.emulator.memory import FORWARD, Finding, Landing, settled
from ci.emulator.registers import LANES, Operand, Waves, bits_of, write
from ci.emulator.text import Instruction
from ci.emulator.vector import understood

Array = np.ndarray
Action = Callable[[Waves], None]


class Shared:
    """LDS of workgroups that run together.

    Between two barriers a unit may be touched by several waves only if none changes it: layouts that repeat
    let waves write the same value to one place, which is allowed.
    """

    def __init__(self, groups: int, size: int, unit: int, fill: Array, order: slice = FORWARD):
        """size: bytes of a workgroup; unit: bytes of the smallest store; fill: its first content, of words;
        order: in which lanes store, so that the last one's value remains."""
        self.order = order
        self.size, self.unit = size, unit
        self.data = np.broadcast_to(fill, (groups, -(-size // 4))).copy().view(np.uint8)
        self.words = self.data.view(np.uint32)
        self.writers = np.zeros((groups, -(-size // unit)), np.uint32)
        self.readers = np.zeros_like(self.writers)

    def barrier(self, group: Array) -> None:
        """All earlier operations of a workgroup are complete."""
        self.writers[group] = 0
        self.readers[group] = 0

    def places(self, ins: Instruction, group: Array, wave: Array, address: Array, size: int, active: Array):
        """(workgroup, byte, bit of the wave) of each active access."""
        outside = active & ((address < 0) | (address + size > self.size))
        if outside.any():
            at = int(np.broadcast_to(address, active.shape)[outside][0])
            raise Finding("address", ins, f"{size} bytes at {at} of LDS, which has {self.size}")
        address = np.broadcast_to(address, active.shape)[active]
        if (address % size).any():
            raise Finding("address", ins, "an unaligned access of LDS")
        rows = np.broadcast_to(group[:, None], active.shape)[active]
        bits = np.broadcast_to(np.uint32(1) << wave.astype(np.uint32)[:, None], active.shape)[active]
        return rows, address, bits

    def load(self, ins: Instruction, w: Waves, address: Array, size: int) -> Array:
        """Zero-extended values of 1, 2 or 4 bytes."""
        rows, at, bits = self.places(ins, w.group, w.wave, address, size, w.active)
        for part in range(0, size, self.unit):
            place = rows, (at + part) // self.unit
            before = self.writers[place]
            if ((before & ~bits != 0) & (before & bits == 0)).any():
                raise Finding("race", ins, "a wave reads from LDS what another wrote without a barrier")
            np.bitwise_or.at(self.readers, place, bits)
        values = np.zeros(w.active.shape, np.uint32)
        values[w.active] = self.gathered(rows, at, size)
        return values

    def gathered(self, rows: Array, at: Array, size: int) -> Array:
        if size == 4:
            return self.words[rows, at >> 2]
        low = self.data[rows, at].astype(np.uint32)
        return low | self.data[rows, at + 1].astype(np.uint32) << np.uint32(8) if size == 2 else low

    def store(
        self, ins: Instruction, group, wave, address: Array, size: int, active: Array, values: Array
    ) -> None:
        rows, at, bits = self.places(ins, group, wave, address, size, active)
        values = np.broadcast_to(values, active.shape)[active] & np.uint32((1 << 8 * size) - 1)
        changed = self.gathered(rows, at, size) != values
        for part in range(0, size, self.unit):
            place = rows, (at + part) // self.unit
            others = (self.writers[place] | self.readers[place]) & ~bits
            if (changed & (others != 0)).any():
                raise Finding("race", ins, "a wave changes LDS that another used without a barrier")
        self.put(rows[self.order], at[self.order], size, values[self.order])
        lost = self.gathered(rows, at, size) != values
        if lost.any():
            settled(ins, rows * self.size + at, bits, self.order, lost)
        for part in range(0, size, self.unit):
            np.bitwise_or.at(self.writers, (rows, (at + part) // self.unit), bits)

    def put(self, rows: Array, at: Array, size: int, values: Array) -> None:
        if size == 4:
            self.words[rows, at >> 2] = values
            return
        for byte in range(size):
            self.data[rows, at + byte] = (values >> np.uint32(8 * byte)).astype(np.uint8)

    def land(self, landing: Landing) -> None:
        """A load that went straight to LDS has arrived."""
        for k, word in enumerate(landing.words):
            self.store(
                landing.ins, landing.group, landing.wave, landing.address + 4 * k, 4, landing.active, word
            )


NAMES = re.compile(r"ds_(read|write)(2?)(st64)?_(b8|u8|b16|u16|b32|b64|b128)(_d16_hi)?$")


def access(ins: Instruction, operands: list[Operand]) -> Action:
    """ds_read and ds_write of any width, in pairs, and of a high half."""
    name = NAMES.match(ins.op)
    loads, pair, far, form, half = name[1] == "read", bool(name[2]), bool(name[3]), name[4], name[5]
    understood(ins, {"offset0", "offset1"} if pair else {"offset"})
    size = int(form[1:]) // 8
    stride = size * (64 if far else 1)
    if pair:
        offsets = [int(ins.modifiers.get(f"offset{k}") or "0", 0) * stride for k in (0, 1)]
    else:
        offsets = [int(ins.modifiers.get("offset") or "0", 0)]
    count, width = max(1, size // 4), min(size, 4)
    if loads:
        to, where = operands
        sources: list[Operand] = []
    else:
        where, *sources = operands
    read = bits_of(where, "u")
    shift = np.uint32(16 if half else 0)

    def run(w: Waves) -> None:
        lds, base, words = w.world.shared, read(w).astype(np.int64), []
        for number, offset in enumerate(offsets):
            for k in range(count):
                address = base + offset + 4 * k
                if loads:
                    words.append(lds.load(ins, w, address, width))
                else:
                    values = w.v[sources[number].index + k] >> shift
                    lds.store(ins, w.group, w.wave, address, width, w.active, values)
        for k, word in enumerate(words):
            write(w, to.index + k, word)

    return run


def transposed(ins: Instruction, operands: list[Operand]) -> Action:
    """ds_read_b64_tr_b16: 16 lanes read 4 x 16 numbers, 8 bytes a lane, and lane i gets the 4 of column i."""
    understood(ins, {"offset"})
    to, where = operands
    offset = int(ins.modifiers.get("offset") or "0", 0)
    read = bits_of(where, "u")
    lane = np.arange(LANES)

    def run(w: Waves) -> None:
        if not w.full:
            raise ValueError(f"{ins}: a transposed read with inactive lanes is not known here")
        base = read(w).astype(np.int64) + offset
        words = np.stack([w.world.shared.load(ins, w, base + 4 * k, 4) for k in (0, 1)], -1)
        numbers = np.ascontiguousarray(words).view(np.uint16)  # (waves, lanes, 4)
        # lane 4 k + c of a row of 16 holds columns 4 c to 4 c + 3 of line k
        tile = numbers.reshape(len(numbers), LANES // 16, 4, 16)
        column = tile[:, lane // 16, :, lane % 16].transpose(1, 0, 2)  # (waves, lanes, k)
        pairs = np.ascontiguousarray(column).view(np.uint32)
        for k in (0, 1):
            write(w, to.index + k, pairs[:, :, k])

    return run


def across(ins: Instruction, operands: list[Operand]) -> Action:
    """ds_bpermute_b32 and ds_permute_b32: lanes of one wave, no memory."""
    understood(ins, {"offset"})
    to, where, data = operands
    function = lanes.bpermute if ins.op == "ds_bpermute_b32" else lanes.permute
    offset = np.uint32(int(ins.modifiers.get("offset") or "0", 0))
    address, value = bits_of(where, "u"), bits_of(data, "u")

    def run(w: Waves) -> None:
        shape = w.active.shape
        write(
            w,
            to.index,
            function(np.broadcast_to(address(w) + offset, shape), np.broadcast_to(value(w), shape), w.active),
        )

    return run


FORMS = {
    "read": ("u8", "u16", "b32", "b64", "b128"), "write": ("b8", "b16", "b16_d16_hi", "b32", "b64", "b128"),
    **dict.fromkeys(("read2", "write2", "read2st64", "write2st64"), ("b32", "b64")),
}  # fmt: skip
TABLE: dict[str, Callable[[Instruction, list[Operand]], Action]] = {
    **{f"ds_{name}_{form}": access for name, forms in FORMS.items() for form in forms},
    "ds_read_b64_tr_b16": transposed,
    **dict.fromkeys(("ds_bpermute_b32", "ds_permute_b32"), across),
}
