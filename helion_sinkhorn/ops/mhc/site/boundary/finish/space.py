"""The config of the launch that ends hc_boundary for few tokens, which follows from others."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.pre.normed.space import forward_warps
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import space as split
from helion_sinkhorn.runtime.space import Items, default_only

FEW = 256
"""Tokens up to which one launch is shorter than three.

H200, 4 x 4096 columns: 3.4 us of 16 tokens where three take 8.5, and 4.3 where they take 8.7 of 128.
"""


def default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    """As many threads as share a row of hc_pre with a norm, and matrices as hc_split_sinkhorn has them."""
    _, variant = split.forward_default(split.HcCall("float32", call.n, 20, True), device)
    return (("num_warps", forward_warps(call.pre, device)),), variant


space = default_only(default)
