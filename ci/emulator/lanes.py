"""Exchange between lanes: DPP, SDWA's parts of a register, permlane swaps, bpermute, readlane, writelane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

Array = np.ndarray
ROW = 16
"""Lanes of a DPP row."""
BANK = 4
SELECT = {
    "DWORD": (0, 32),
    **{f"WORD_{k}": (16 * k, 16) for k in range(2)},
    **{f"BYTE_{k}": (8 * k, 8) for k in range(4)},
}
"""SDWA: (first bit, bits)."""


# -------------------------------------------------------------------------------------------------- DPP


LANE = np.arange(64)
PLACE = LANE % ROW
EVERYWHERE = np.ones(64, bool)
CONTROLS: dict[str, Callable[[int], tuple[Array, Array]]] = {
    "row_shl": lambda k: (np.minimum(LANE + k, 63), PLACE + k < ROW),
    "row_shr": lambda k: (np.maximum(LANE - k, 0), k <= PLACE),
    "row_ror": lambda k: (LANE - PLACE + (PLACE - k) % ROW, EVERYWHERE),
    "row_mirror": lambda k: (LANE - PLACE + ROW - 1 - PLACE, EVERYWHERE),
    "row_half_mirror": lambda k: (LANE - LANE % 8 + 7 - LANE % 8, EVERYWHERE),
    "row_newbcast": lambda k: (LANE - PLACE + k, EVERYWHERE),
    "row_bcast:15": lambda k: (np.maximum(LANE - PLACE - 1, 0), LANE >= ROW),
    "row_bcast:31": lambda k: (np.full(64, 31), LANE >= 32),
    "wave_shr": lambda k: (np.maximum(LANE - 1, 0), LANE > 0),
    "wave_shl": lambda k: (np.minimum(LANE + 1, 63), LANE < 63),
    "wave_ror": lambda k: ((LANE - 1) % 64, EVERYWHERE),
    "wave_rol": lambda k: ((LANE + 1) % 64, EVERYWHERE),
}
"""Amount -> (lane read, whether it is in reach) of each lane."""


@cache
def pattern(control: str, value: str) -> tuple[Array, Array]:
    """(lane read, whether it is in reach) of each lane.

    Raises:
        ValueError: no such control on gfx9.
    """
    if control == "quad_perm":
        order = np.array([int(k) for k in value.strip("[]").split(",")])
        return LANE - LANE % 4 + order[LANE % 4], EVERYWHERE
    rule = CONTROLS.get(control) or CONTROLS.get(f"{control}:{value}")
    if rule is None:
        raise ValueError(f"DPP control {control}:{value} is not one of gfx9")
    return rule(int(value) if value.isdigit() else 0)


NOT_CONTROLS = {"encoding", "row_mask", "bank_mask", "bound_ctrl", "clamp", "neg", "abs", "fi"}


def control_of(modifiers: Mapping[str, str]) -> tuple[Array, Array]:
    """The pattern that a DPP instruction names."""
    names = [k for k in modifiers if k not in NOT_CONTROLS]
    if len(names) != 1:
        raise ValueError(f"one DPP control is needed, found {names}")
    return pattern(names[0], modifiers[names[0]])


def dpp_source(read: Callable, modifiers: Mapping[str, str]) -> Callable:
    """A source from other lanes; what comes from nowhere, or from an inactive lane, is 0."""
    lane, reach = control_of(modifiers)

    def moved(w):
        values = read(w)[:, lane]
        if w.full and reach.all():
            return values
        return np.where(reach & w.active[:, lane], values, np.uint32(0))

    return moved


def dpp_written(modifiers: Mapping[str, str]) -> Callable | None:
    """The lanes that a DPP instruction writes, apart from EXEC; None for all."""
    lane, reach = control_of(modifiers)
    rows, banks = (int(modifiers.get(k, "0xf"), 0) for k in ("row_mask", "bank_mask"))
    masked = ((rows >> (LANE // ROW)) & 1 == 1) & ((banks >> (PLACE // BANK)) & 1 == 1)
    if "bound_ctrl" in modifiers:
        return None if masked.all() else lambda w: np.broadcast_to(masked, w.active.shape)
    return lambda w: masked & reach & w.active[:, lane]


# ------------------------------------------------------------------------------------------------- SDWA


def selected(read: Callable, part: str, signed: bool) -> Callable:
    """A part of each register of a source, extended to 32 bits."""
    first, size = SELECT[part]
    if size == 32:
        return read
    up, down = np.uint32(32 - size - first), np.uint32(32 - size)
    if signed:
        return lambda w: ((read(w) << up).view(np.int32) >> np.int32(32 - size)).view(np.uint32)
    return lambda w: (read(w) << up) >> down


def placed(bits: Array, before: Array, modifiers: Mapping[str, str]) -> Array:
    """A result where dst_sel puts it, and what dst_unused leaves of the register."""
    first, size = SELECT[modifiers.get("dst_sel", "DWORD")]
    if size == 32:
        return bits
    mask = np.uint32((1 << size) - 1)
    moved = (bits & mask) << np.uint32(first)
    unused = modifiers.get("dst_unused", "UNUSED_PAD")
    if unused == "UNUSED_PAD":
        return moved
    if unused == "UNUSED_PRESERVE":
        return moved | (before & ~(mask << np.uint32(first)))
    if unused == "UNUSED_SEXT":
        shifted = (bits << np.uint32(32 - size)).view(np.int32) >> np.int32(32 - size - first)
        return shifted.view(np.uint32) & ~np.uint32((1 << first) - 1)
    raise ValueError(f"dst_unused:{unused} is unknown")


# ------------------------------------------------------------------------------------- whole registers


def swap(a: Array, b: Array, size: int) -> tuple[Array, Array]:
    """v_permlane16_swap, 32: the odd groups of `size` lanes of a change places with the even ones of b."""
    shape = (*a.shape[:-1], 64 // (2 * size), 2, size)
    a, b = a.copy().reshape(shape), b.copy().reshape(shape)
    kept = a[..., 1, :].copy()
    a[..., 1, :] = b[..., 0, :]
    b[..., 0, :] = kept
    return a.reshape(-1, 64), b.reshape(-1, 64)


def bpermute(address: Array, data: Array, active: Array) -> Array:
    """ds_bpermute_b32: lane address / 4 of the data, 0 from an inactive one."""
    lane = (address >> np.uint32(2)).astype(np.intp) & 63
    return np.take_along_axis(np.where(active, data, np.uint32(0)), lane, -1)


def permute(address: Array, data: Array, active: Array) -> Array:
    """ds_permute_b32: data to lane address / 4, the highest lane last; 0 where none sends."""
    lane = (address >> np.uint32(2)).astype(np.intp) & 63
    received = np.zeros_like(data)
    for k in range(64):
        wave = np.nonzero(active[:, k])[0]
        received[wave, lane[wave, k]] = data[wave, k]
    return received


def first_active(active: Array) -> Array:
    """The lowest active lane of each wave, 0 where none is."""
    return active.argmax(-1)
