"""Defaults of the implicit kernels, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.sinkhorn.space import (
    SinkhornCall,
    can_hold,
    can_pack,
    over_threads,
    spread_over,
    spread_tiles,
    threads_space,
)
from helion_sinkhorn.runtime.space import Grid, Items, tile


def thread_per_matrix(device: Device) -> Items:
    """As many matrices in a block as threads, so that Triton leaves each matrix in one thread."""
    return tile(device.warp_size, 1)


def whole_tiles(device: Device) -> tuple[Items, ...]:
    """One or two matrices a thread: with fewer matrices than threads Triton spreads them."""
    w = device.warp_size
    return tile(w, 1), tile(2 * w, 1), tile(2 * w, 2), tile(4 * w, 4)


def implicit_direct_default(call: SinkhornCall, device: Device) -> tuple[Items, Items]:
    # an 8 x 8 matrix barely fits: it takes 241 to 255 registers, and at least 15 s to compile
    packed = call.n == call.m and can_pack(call, 16)
    variant = (("packed", packed),)
    return thread_per_matrix(device) if packed else spread_over(call, device, 8, 32), variant


def implicit_cg_default(call: SinkhornCall, device: Device) -> tuple[Items, Items]:
    # a thread holds P and G: with 8 x 8 entries of each 136 bytes spill (sm_90, Triton 3.9).  For 32 x 32
    # the block that Triton chooses takes no more instructions
    block = min(8, call.n), min(4, call.m)
    if call.n != call.m or not can_hold(call, *block) or call.n > 16:
        return spread_over(call, device, 16, 32), (("thread", (0, 0)),)
    return over_threads(call, device, *block), (("thread", block),)


def implicit_direct_space(call: SinkhornCall, device: Device) -> tuple[Grid, ...]:
    spread = {"config": spread_tiles(call, device, (4, 8, 16, 32)), "packed": (False,)}
    if call.n != call.m or not can_pack(call, 64):
        return (spread,)
    return {"config": whole_tiles(device), "packed": (True,)}, spread


def implicit_cg_space(call: SinkhornCall, device: Device) -> tuple[Grid, ...]:
    spread = {"config": spread_tiles(call, device, (4, 8, 16, 32, 64)), "thread": ((0, 0),)}
    if call.n != call.m:
        # a call with fewer rows than columns has this key too, and leaves the layout of its views to Triton
        return (spread,)
    return (spread, *threads_space(call, device, ((8, 8), (8, 4), (4, 4))))
