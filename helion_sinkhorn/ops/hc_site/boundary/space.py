"""The config of hc_boundary's forward taken untuned, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.hc_mixes.space import BLOCK_K, CHUNK
from helion_sinkhorn.ops.hc_site.space import SiteCall
from helion_sinkhorn.runtime.space import Grid, Items


def chunk_of(call: SiteCall) -> int:
    """Columns of each stream that one program adds up: as many products as in hc_mixes."""
    return max(1, CHUNK // (call.n * BLOCK_K)) * BLOCK_K


def config(columns: int, rows: int, warps: int, stages: int) -> Items:
    """`rows` tokens a program, `columns` of each stream at a time, of which `stages` are on their way."""
    return (
        ("block_sizes", (columns, rows)),
        ("num_warps", warps),
        ("num_stages", stages),
        ("range_num_stages", (0, stages)),
    )


def forward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    # sm_90: 171 registers; with 64 columns or 32 tokens it spills, for the old streams and the new one
    return config(32, 64, 8, 2 if device.vendor == "nvidia" else 1), ()


def forward_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    stages = (1, 2, 3) if device.vendor == "nvidia" else (1, 2)
    sizes = (32, 64, 4), (32, 64, 8), (32, 128, 8), (64, 64, 8)
    few = [config(*size, s) for size in sizes for s in stages]
    return ({"config": tuple(few)},)
