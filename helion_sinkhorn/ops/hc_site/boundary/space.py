"""The config of hc_boundary's forward taken untuned, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.hc_mixes.space import BLOCK_K, CHUNK, forward_config
from helion_sinkhorn.ops.hc_site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, Items


def chunk_of(call: SiteCall) -> int:
    """Columns of each stream that one program adds up: as many products as in hc_mixes."""
    return max(1, CHUNK // (call.n * BLOCK_K)) * BLOCK_K


def forward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return forward_config(64, 8, 2 if device.vendor == "nvidia" else 1), ()


def forward_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    stages = (1, 2, 3) if device.vendor == "nvidia" else (1, 2)
    few = [forward_config(r, w, s) for r, w in ((32, 4), (64, 4), (64, 8), (128, 8)) for s in stages]
    return ({"config": tuple(few)},)
