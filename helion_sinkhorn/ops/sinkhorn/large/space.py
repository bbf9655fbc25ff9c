"""What a config of the kernels of large matrices is chosen for, its default, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two

LINES = 2, 4, 8, 16, 32, 64
"""Rows of a program that the tuner tries."""


@dataclass(frozen=True)
class LargeCall(Keyed):
    """The dtype of the logits, how many lines a matrix has that are normalised first, and their length."""

    dtype: str
    n: int
    m: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.m}"


def together(call: LargeCall, device: Device, warps: int, entries: int) -> int:
    """Rows that a program has at once, each thread with so many entries."""
    return max(1, warps * device.warp_size * entries // power_of_two(call.m))


def warps_of(call: LargeCall, device: Device) -> int:
    """Warps that share a row: 16 entries a thread."""
    return max(1, min(1024 // device.warp_size // 2, power_of_two(call.m) // (16 * device.warp_size)))


def by_rows(call: LargeCall, device: Device, warps: int, entries: int, rows: int) -> tuple[Items, int]:
    inner = min(rows, together(call, device, warps, entries))
    return (("block_sizes", (inner,)), ("num_warps", warps)), rows


def rows_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # a part of the columns' sums for eight rows: an eighth of the matrix, and 128 programs for 1024 rows
    config, rows = by_rows(call, device, max(4, warps_of(call, device)), 16, min(8, call.n))
    return config, (("rows", rows),)


def rows_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    least = warps_of(call, device)
    grids = []
    for warps in {least, 2 * least, max(4, least)}:
        for entries in (8, 16, 32):
            inner = together(call, device, warps, entries)
            rows = tuple(k for k in LINES if inner <= k <= call.n)
            config = ("block_sizes", (inner,)), ("num_warps", warps)
            if warps * device.warp_size <= 1024 and rows:
                grids.append({"config": (config,), "rows": rows})
    return tuple(grids)


def columns_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32)), ("num_warps", 4)), ()


def of_logs_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32, 32)), ("num_warps", 4)), ()


def columns_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    tiles = [(1, j, k) for j in (16, 32, 64) for k in (16, 32, 64, 128)]
    return ({"config": tuple((("block_sizes", b), ("num_warps", w)) for b in tiles for w in (1, 4))},)


def write_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    columns = min(power_of_two(call.m), 1024)
    return (("block_sizes", (max(1, 2048 // columns), columns)), ("num_warps", 4)), ()


def whole_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    warps = max(4, warps_of(call, device))
    return (("block_sizes", (together(call, device, warps, 16),)), ("num_warps", warps)), ()


def whole_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    least = warps_of(call, device)
    tiles = {
        (together(call, device, w, e), w) for w in (least, 2 * least, max(4, least)) for e in (8, 16, 32)
    }
    configs = tuple(
        (("block_sizes", (k,)), ("num_warps", w)) for k, w in sorted(tiles) if w * device.warp_size <= 1024
    )
    return ({"config": configs},)


def only_default(default):
    """A space of the default alone."""
    return lambda call, device: ({"config": (default(call, device)[0],)},)
