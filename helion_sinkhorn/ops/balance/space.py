"""The properties of a call that choose configs of sinkhorn_balance, defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two

LARGEST_N = 1 << 14
"""The most columns of the kernels, since a program has whole rows."""
FEWEST_ROWS = 16
"""The fewest rows of a share, so that a share writes little beside what it reads."""


@dataclass(frozen=True)
class BalanceCall(Keyed):
    """The dtype of the update and its columns."""

    dtype: str
    columns: int

    def __str__(self) -> str:
        return f"{self.dtype} x{self.columns}"


def by_rows(call: BalanceCall, device: Device, warps: int, entries: int) -> Items:
    """Blocks of whole rows with this many entries a thread."""
    rows = max(1, entries * warps * device.warp_size // power_of_two(call.columns))
    return ("block_sizes", (rows,)), ("num_warps", warps)


def usual_warps(call: BalanceCall) -> int:
    """Warps of a block: each thread of a row has up to 16 of its entries, and short rows have one warp."""
    return min(16, max(1, power_of_two(call.columns) // 512))


def rows_default(call: BalanceCall, device: Device) -> tuple[Items, Items]:
    return by_rows(call, device, min(8, usual_warps(call)), 16), ()


def usual_blocks(call: BalanceCall) -> tuple[tuple[int, int], ...]:
    """(warps, entries a thread) that are tried: more rows with the same threads or with more."""
    usual = usual_warps(call)
    return (usual, 16), (usual, 32), (min(16, 4 * usual), 16)


def rows_space(call: BalanceCall, device: Device) -> tuple[Grid, ...]:
    blocks = [by_rows(call, device, *block) for block in usual_blocks(call)]
    return ({"config": tuple(dict.fromkeys(blocks))},)


def step_config(call: BalanceCall, device: Device, warps: int, entries: int, stages: int) -> Items:
    """The blocks of by_rows, of which `stages` are loaded at a time."""
    return *by_rows(call, device, warps, entries), ("range_num_stages", (0, stages))


def step_default(call: BalanceCall, device: Device) -> tuple[Items, Items]:
    warps = usual_warps(call)
    stages = 3 if device.vendor == "nvidia" else 0
    return step_config(call, device, warps, 16, stages), (("programs", 16 // warps),)


def step_space(call: BalanceCall, device: Device) -> tuple[Grid, ...]:
    """Configs of steps, whose threads hold squares and scales of their columns, and loaded entries."""
    grids = []
    for warps, entries in usual_blocks(call):
        configs = tuple(step_config(call, device, warps, entries, stages) for stages in (0, 3))
        grids.append({"config": configs, "programs": tuple(max(1, k // warps) for k in (16, 32))})
    return tuple(grids)


def columns_config(call: BalanceCall, shares: int, columns: int) -> Items:
    return ("block_sizes", (shares, min(columns, power_of_two(call.columns)))), ("num_warps", 4)


def columns_default(call: BalanceCall, device: Device) -> tuple[Items, Items]:
    """Programs take few columns where there are few, so that all are busy."""
    return columns_config(call, *((64, 32) if call.columns > 2048 else (256, 8))), ()


def columns_space(call: BalanceCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(columns_config(call, *block) for block in ((64, 32), (128, 16), (256, 8)))},)
