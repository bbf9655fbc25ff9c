"""Which calls the kernels of hc_last with a head take, and their configs."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.mixes.space import MixesCall
from helion_sinkhorn.ops.mhc.site.boundary import space as boundary
from helion_sinkhorn.ops.mhc.site.boundary.last import space as last
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, default_only

FEWEST_STREAMS = 2
"""Helion drops the index of an axis of one row of fn."""
sums_default = boundary.forward_default
head_default, head_space = last.default, last.space


def sums_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    # in other dtypes other configs spill: fn and the streams have more parts in registers
    space = boundary.forward_space if call.dtype == "bfloat16" else default_only(sums_default)
    return space(call, device)


def projection_of(call: SiteCall) -> MixesCall:
    """The projection of a head for the streams of such a call."""
    return MixesCall(call.dtype, call.n, call.n * call.columns, "float32")
