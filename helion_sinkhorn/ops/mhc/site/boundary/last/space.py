"""Which calls the kernel of hc_last takes, and their configs."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.pre.normed.space import warps_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, Items

MOST_STREAMS, MOST_COLUMNS = 4, 8192
"""A thread of 16 warps has 16 entries of each of the streams, of f and of two sums: 112 registers of 128."""


def default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return (("num_warps", warps_for(call.pre, device, 16)),), ()


def space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    """Only the default: other threads would add up a token's squares in another order."""
    return ({"config": (default(call, device)[0],)},)
