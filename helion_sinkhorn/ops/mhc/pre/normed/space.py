"""The configs of hc_pre with a norm, chosen by the same properties of a call as the configs of hc_pre.

The number of threads that share a row decides the order of its sums, and so a token's bits: it is fixed for a
call.
"""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.runtime.space import Grid, Items, default_only, power_of_two

RESERVED = 9 << 10
"""Bytes of shared memory beside the rows that are loaded early: with 16-bit streams 1024 for each of eight
warps, and less than 512 (compiled for sm_90).
"""
SHARES = 256
"""Programs of the backward, each with a row of sums over its tokens."""


def warps_for(call: PreCall, device: Device, entries: int) -> int:
    """Warps that share a row if a thread has this many entries of it."""
    return max(1, min(16, power_of_two(call.columns) // (entries * device.warp_size)))


def forward_warps(call: PreCall, device: Device) -> int:
    """Up to four warps, or more if a thread would otherwise have more than 64 entries.

    On an H200 8192 tokens take with 4, 8 and 16 warps: 4 x 5120 columns 102, 103 and 117 us; a norm without
    collapse of 5120 columns 52, 59 and 78 us, of 7168 71, 75 and 91 us, of 4096 43, 43 and 46 us.
    """
    usual = warps_for(call, device, 16)
    return usual if device.vendor == "amd" else max(min(4, usual), warps_for(call, device, 64))


def forward_default(call: PreCall, device: Device) -> tuple[Items, Items]:
    return (("num_warps", forward_warps(call, device)),), ()


forward_space = default_only(forward_default)


def backward_warps(call: PreCall, device: Device) -> int:
    """Up to eight warps, and four where one stream alone is normalised.

    H200, us of 8192 tokens with 4, 8 and 16 warps: 4 x 4096 columns 179, 178 and 183, 4 x 5120 334, 283 and
    343, 4 x 7168 372, 347 and 372; one stream of 4096 79, 80 and 88, of 5120 114, 139 and 154, of 7168 144,
    155 and 162.
    """
    usual = warps_for(call, device, 16)
    return usual if device.vendor == "amd" else min(usual, 4 if call.n == 1 else 8)


def backward_config(call: PreCall, device: Device, stages: int) -> Items:
    """A config that loads the streams of `stages` tokens at a time."""
    return ("num_warps", backward_warps(call, device)), ("range_num_stages", (0, stages))


def backward_default(call: PreCall, device: Device) -> tuple[Items, Items]:
    # of the next token shared memory holds the streams, the gradient, and the weight in float32
    entry = (call.n + 1) * (4 if call.dtype == "float32" else 2) + 4
    fits = entry * power_of_two(call.columns) <= device.shared_limit - RESERVED
    return backward_config(call, device, 2 if device.vendor == "nvidia" and fits else 0), ()


def backward_space(call: PreCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(backward_config(call, device, stages) for stages in (0, 2, 3))},)
