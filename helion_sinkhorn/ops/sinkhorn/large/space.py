"""The properties of a call on large matrices that choose configs, the defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two

LINES = 4, 8, 16, 32
"""Numbers of rows in a program that the tuner tries."""


@dataclass(frozen=True)
class LargeCall(Keyed):
    """The dtype of the logits, and the number and length of the lines that are normalised first."""

    dtype: str
    n: int
    m: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.m}"


def together(call: LargeCall, device: Device, warps: int, entries: int) -> int:
    """Rows that a program has at once, if each thread has this many entries."""
    return max(1, warps * device.warp_size * entries // power_of_two(call.m))


def warps_of(call: LargeCall, device: Device) -> int:
    """Warps that share a row, with 16 entries for each thread."""
    return max(1, min(1024 // device.warp_size // 2, power_of_two(call.m) // (16 * device.warp_size)))


def tiles(call: LargeCall, device: Device, *, least: int) -> tuple[Items, ...]:
    """Configs with 8, 16 or 32 entries of a block of rows in each thread, and few warps or twice as many."""
    warps = max(least, warps_of(call, device))
    return tuple(
        (("block_sizes", (together(call, device, w, entries),)), ("num_warps", w))
        for w in (warps, 2 * warps)
        for entries in (8, 16, 32)
        if w * device.warp_size <= 1024 and w * device.warp_size * entries >= power_of_two(call.m)
    )


def rows_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # with eight rows a program, the parts of the columns' sums are an eighth of the matrix, and 1024 rows
    # make 128 programs
    warps = max(4, warps_of(call, device))
    block = min(8, together(call, device, warps, 16))
    return (("block_sizes", (block,)), ("num_warps", warps)), (("rows", 8),)


def rows_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    grids = []
    for config in tiles(call, device, least=4):
        block = dict(config)["block_sizes"][0]
        rows = tuple(k for k in LINES if block <= k and 2 * k <= max(call.n, 16))
        if rows:
            grids.append({"config": (config,), "rows": rows})
    return tuple(grids)


def columns_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32)), ("num_warps", 4)), ()


def of_logs_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32, 32)), ("num_warps", 4)), ()


def columns_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    blocks = (1, 16, 64), (1, 32, 32), (1, 32, 128), (1, 64, 32)
    return ({"config": tuple((("block_sizes", b), ("num_warps", w)) for b in blocks for w in (1, 4))},)


def write_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    columns = min(power_of_two(call.m), 1024)
    return (("block_sizes", (max(1, 2048 // columns), columns)), ("num_warps", 4)), ()


def whole_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # with 16 entries a thread, matrices of 16 bits whose rows are not aligned spill: 130 x 129 on sm_90
    warps = max(4, warps_of(call, device))
    return (("block_sizes", (together(call, device, warps, 8),)), ("num_warps", warps)), ()


def whole_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tiles(call, device, least=4)},)


def width(call: LargeCall, most: int) -> int:
    """Entries of a line in a tile: a short line has several tiles too."""
    return min(most, max(16, power_of_two(call.m) // 4))


def wide_rows_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (width(call, 2048), 1)), ("num_warps", 4)), ()


def wide_gradient_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # 8 entries a thread, since 16 spill in the deepseek form
    return (("block_sizes", (width(call, 8 * 4 * device.warp_size), 1)), ("num_warps", 4)), ()


def wide_rows_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    blocks = (1024, 1), (2048, 1), (4096, 1), (1024, 4), (2048, 2)
    return ({"config": tuple((("block_sizes", b), ("num_warps", w)) for b in blocks for w in (4, 8))},)


def wide_columns_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (16, width(call, 128))), ("num_warps", 4)), ()


def wide_columns_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    blocks = (16, 64), (8, 128), (16, 128), (32, 128), (8, 256), (4, 512)
    return ({"config": tuple((("block_sizes", b), ("num_warps", w)) for b in blocks for w in (4, 8))},)
