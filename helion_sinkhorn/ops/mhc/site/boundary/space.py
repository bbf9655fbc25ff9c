"""The config of hc_boundary's forward taken untuned, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.mixes import space as mixes
from helion_sinkhorn.ops.mhc.mixes.space import BLOCK_K, CHUNK
from helion_sinkhorn.ops.mhc.site.space import SiteCall, of_mixes
from helion_sinkhorn.runtime.space import Grid, Items, staged

MOST_STREAMS = 4
"""The most that the kernel takes: with old streams, a new one and coefficients registers are full."""
WIDTH = 32
"""Columns of each stream a step: fixed, since the sums of mixes are added up step by step.

Four threads share a row of a matrix product of so many columns, eight columns each.
"""


def chunk_of(call: SiteCall) -> int:
    """Columns of each stream that one program adds up: half as many products as in hc_mixes.

    H200, 4 x 4096 columns in bfloat16: 128 columns take 11 us for 128 tokens and 262 for 8192; 512 take 40
    and 270.
    """
    return max(1, CHUNK // (2 * call.n * BLOCK_K)) * BLOCK_K


def config(rows: int, warps: int, stages: int) -> Items:
    """`rows` tokens a program, and `stages` steps on their way."""
    return staged((rows,), warps, stages)


split_default, split_space = of_mixes(mixes.split_default), of_mixes(mixes.split_space)


def forward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    if device.vendor == "amd":
        # of 64 tokens in float32 a gfx942 spills 12 bytes with eight warps
        return config(32 if call.dtype == "float32" else 64, 4, 1), ()
    # sm_90, 4 streams, bfloat16: 168 registers under Triton 3.6 and 246 under 3.9, two programs a
    # multiprocessor; with eight warps products lie in another order than their sums: twice the barriers
    return config(64, 8 if call.dtype == "float32" else 4, 2), ()


def blocks(device: Device) -> list[Items]:
    """Configs of blocks of 64 and 128 tokens."""
    stages = (2, 3) if device.vendor == "nvidia" else (1, 2)
    return [config(*size, s) for size in ((64, 4), (64, 8), (128, 8)) for s in stages]


def forward_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    few = blocks(device)
    if device.vendor == "nvidia" and call.dtype == "bfloat16":
        # for few tokens; four warps have other sums of squares.  H200, 4 x 4096 columns, 16 tokens: 6.0 us
        # where blocks of 64 take 9.1, and 13.6 where those take 10.9 for 256
        few.append(config(16, 2, 3))
    return ({"config": tuple(few)},)
