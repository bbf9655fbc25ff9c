"""The configs of hc_boundary's backward taken untuned, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.hc_mixes import space as mixes
from helion_sinkhorn.ops.hc_site.boundary.space import config
from helion_sinkhorn.ops.hc_site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two

CHUNK = 512
"""Columns of each stream that one program adds up: fixed, so that a token's bits are those of any batch.

4 x 4096 columns: the partial sums are 768 bytes a token, written and read, of 155 KB in all, and 8192 tokens
make 1024 programs, four for each place on an H200.
"""
ROWS, WARPS = 64, 4
"""Tokens and warps of a program: with others a token's columns are added up in another order."""


def backward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return config(ROWS, WARPS, 2 if device.vendor == "nvidia" else 1), ()


def backward_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    """How many steps are on their way, alone."""
    stages = (1, 2, 3) if device.vendor == "nvidia" else (1, 2)
    return ({"config": tuple(config(ROWS, WARPS, s) for s in stages)},)


def sums_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (fewest_tokens(call, device),)), ("num_warps", 1)), ()


def sums_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    fewest = fewest_tokens(call, device)
    few = [(("block_sizes", (fewest * more,)), ("num_warps", w)) for more in (1, 2, 4, 8) for w in (1, 4)]
    return ({"config": tuple(few)},)


def fewest_tokens(call: SiteCall, device: Device) -> int:
    """As many as fill a warp with 16 bytes a thread of dcomb."""
    return max(1, 4 * device.warp_size // power_of_two(call.n * call.n))


def projection_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return mixes.backward_default(call.mixes, device)


def projection_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    return mixes.backward_space(call.mixes, device)
