"""Which calls the kernels of hc_last with a head take, and their configs."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.ops.mhc.site.boundary import space as boundary
from helion_sinkhorn.ops.mhc.site.boundary.last import space as last
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, Items, default_only

FEWEST_STREAMS = 2
"""Helion drops the index of an axis of one row of fn."""
head_default, head_space = last.default, last.space


def sums_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    if device.vendor == "nvidia" and call.dtype == "bfloat16":
        # H200, 4 x 4096 columns, 128 tokens: 8.7 us, and 9.6 with two stages
        return boundary.config(64, 4, 3), ()
    return boundary.forward_default(call, device)


def sums_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    # in other dtypes other configs spill: fn and the streams have more parts in registers.  Blocks of 16
    # tokens have other sums on an H200
    if call.dtype == "bfloat16":
        return ({"config": tuple(boundary.blocks(device))},)
    return default_only(sums_default)(call, device)


def projection_of(call: SiteCall) -> MixesCall:
    """The projection of a head for the streams of such a call."""
    return MixesCall(call.dtype, call.n, call.n * call.columns, "float32")
