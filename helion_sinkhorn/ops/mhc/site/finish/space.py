"""The config of the launch that ends hc_site and hc_boundary for few tokens, which follows from others."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.pre.normed.space import forward_warps
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import space as split
from helion_sinkhorn.runtime.space import Items, default_only

FEW = 1024
"""Tokens up to which one launch is shorter than three.

H200, a seam of V4, 4 x 4096 columns, with one launch and with three: 29.8 and 36.9 us of 512 tokens, 54.6 and
60.5 of 1024, 102 and 101 of 2048, 364 and 323 of 8192; a site of its own, 21.3 and 24.3 of 512, 32.0 and 33.8
of 1024.
"""
MOST_STREAMS = 4
"""The most streams with which it was measured."""


def default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    """As many threads as share a row of hc_pre with a norm, and matrices as hc_split_sinkhorn has them."""
    _, variant = split.forward_default(split.HcCall("float32", call.n, 20, True), device)
    return (("num_warps", forward_warps(call.pre, device)),), variant


space = default_only(default)
