"""The config that a walk or the kernels of chunks take untuned, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.kernels.linear_attention import WalkCall
from helion_sinkhorn.kernels.linear_attention_chunked import ChunkCall, extent
from helion_sinkhorn.kernels.space import Grid, Items, largest_run, power_of_two, tile


def walk_tile(call: WalkCall, device: Device, rk: int, rv: int, warps: int, many: int = 1) -> Items:
    """So many warps with `many` states of rk x rv entries in a thread, or as few as hold a whole result."""
    lanes = max(1, device.warp_size // power_of_two(-(-call.summed // rk)))
    units = power_of_two(-(-call.kept // rv))
    warps = max(1, min(warps, units // lanes))
    return tile(min(units, lanes * warps * many), warps)


def walk_default(call: WalkCall, device: Device) -> tuple[Items, Items]:
    # sums over 8 threads; loads of fewer entries than threads need no shared memory
    rk = largest_run(call.summed, min(16, max(1, call.summed // 8)))
    rv = largest_run(call.kept, min(8, max(1, 32 // rk)))
    # float32 vectors of 128: eight warps take 3.2 times as long as four on an H200
    warps = min(16, max(4, power_of_two(call.summed) // (32 if call.dtype == "float32" else 16)))
    return walk_tile(call, device, rk, rv, warps), (("rk", rk), ("rv", rv), ("count", 8))


def walk_space(call: WalkCall, device: Device) -> tuple[Grid, ...]:
    lanes = max(1, power_of_two(call.summed) // 8)
    grids: dict[Items, None] = {}
    # of 8 threads a sum, 32 or 16 entries each
    for entries, warps, many in ((32, 4, 1), (32, 8, 1), (16, 8, 1), (16, 16, 1), (16, 4, 1), (16, 8, 2)):
        rk = largest_run(call.summed, lanes)
        rv = largest_run(call.kept, min(8, max(1, entries // rk)))
        config = (walk_tile(call, device, rk, rv, warps, many),)
        grids[("config", config), ("rk", (rk,)), ("rv", (rv,)), ("count", (8,))] = None
    return tuple(map(dict, grids))


def matrix_unit_tile(warps: int, stages: int) -> Items:
    """A program of so many warps that loads so many steps of a loop ahead."""
    return ("num_warps", warps), ("num_stages", stages)


def gates_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    return matrix_unit_tile(4, 1), ()


def gates_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(matrix_unit_tile(w, s) for w in (4, 8) for s in (1, 2))},)


def chunk_columns(call: ChunkCall, most: int) -> tuple[tuple[str, int], ...]:
    """Columns of Dv that a program takes."""
    return (("columns", min(most, extent(call.dv))),)


def chunk_scores_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # eight warps take 1.9 times as long on an H200, 2.2 times with float32 operands
    return matrix_unit_tile(4, 1), ()


def chunk_walk_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # three steps in flight: 75 us against 96 with two on an H200; a block of gfx942 has 64 KiB for them
    stages = (3 if call.operand == "bfloat16" else 2) - (device.shared_limit < 1 << 17)
    return matrix_unit_tile(4, stages), chunk_columns(call, 64)


def chunk_gradients_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # eight warps take 2.1 times as long with bfloat16 on an H200, 128 columns 3 % longer; float32 operands
    # are 1.6 times as fast with four at 64 x 128 and gk, which an entry has; other calls ran with eight
    return matrix_unit_tile(4 if call.operand == "bfloat16" else 8, 1), chunk_columns(call, 64)


def chunk_scores_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(matrix_unit_tile(w, 1) for w in (4, 8))},)


def chunk_walk_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return chunk_tiles(call, (4, 8), (1, 2, 3))


def chunk_gradients_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    # with eight warps bfloat16 takes 2.1 times as long on an H200; the loop has two rounds
    return chunk_tiles(call, (4,) if call.operand == "bfloat16" else (4, 8), (1, 3))


def chunk_tiles(call: ChunkCall, warps: tuple[int, ...], stages: tuple[int, ...]) -> tuple[Grid, ...]:
    """For kernels that cut Dv into tiles."""
    columns = tuple(sorted({min(most, extent(call.dv)) for most in (64, 128)}))
    tiles = tuple(matrix_unit_tile(w, s) for w in warps for s in stages)
    return ({"config": tiles, "columns": columns},)
