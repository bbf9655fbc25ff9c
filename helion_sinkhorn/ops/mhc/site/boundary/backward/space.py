"""The default configs of hc_boundary's backward, and the configs that the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.mhc.mixes import space as mixes
from helion_sinkhorn.ops.mhc.site.boundary.space import config
from helion_sinkhorn.ops.mhc.site.space import SiteCall, of_mixes
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two, tile

CHUNK = 512
"""Columns of each stream that one program adds up: fixed, so that a token's bits are the same in any batch.

With 4 x 4096 columns the partial sums of a token are 768 bytes, which are written and read, of 155 KB that
move in all; 8192 tokens make 1024 programs, four times what an H200 runs at once.
"""
TOGETHER, APART = (("together", True),), (("together", False),)
"""One chain of products for all streams, or one for each: compiled for sm_100 they spill 592 and 72 bytes."""

STORED, AGAIN = (("again", False),), (("again", True),)
"""The new streams are read, or computed again from the old ones and f.

With S the bytes of one stream of a token, computing them again moves 15 S instead of 19 S.
"""


def backward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    if device.vendor == "amd":
        # compiled for gfx950, 4 streams in bfloat16 take 254 registers and 1569 instructions, with a chain
        # for each stream 364 and 2511.  With four warps float32 takes 314, and three streams spill 7 (gfx942)
        return config(64, 8 if call.dtype == "float32" or power_of_two(call.n) != call.n else 4, 1), TOGETHER
    # compiled for sm_90, 4 streams in bfloat16 take 255 registers (Triton 3.6 spills 4 and 3.9 32), so that
    # a multiprocessor has two programs; eight warps need half as many instructions again for the same block.
    # In float32 eight warps spill less, 40 bytes instead of 320, and so they do where columns are moved one
    # by one, 32 instead of 360
    return config(64, 8 if call.dtype == "float32" or call.columns % 8 else 4, 2), APART


def backward_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    """Every config may be tried, since the order in which columns are added up does not depend on it.

    On an H200 8192 x 4096 take 485 us with a step loaded ahead, 1124 us without, and 561 us with 128 tokens
    a program; a config takes 20 s to compile.
    """
    sizes, stages = ((64, 4), (64, 8), (128, 8)), (1, 2)
    if device.vendor == "nvidia":
        sizes, stages = ((64, 4), (64, 8)), (2, 3)
    few = [config(*size, s) for size in sizes for s in stages]
    return ({"config": tuple(few), "together": (True, False)},)


def second_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    if device.vendor == "amd":
        config_of, variant = backward_default(call, device)
        return config_of, variant + STORED
    # sm_90, 4 streams, bfloat16, with a norm: 224 registers and no spill
    return config(64, 8, 2 if call.dtype == "float32" else 3), TOGETHER + STORED


def second_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    """Eight warps on NVIDIA; the order of sums is one for all configs.

    H200, us of 8192 tokens with the norm, streams read and made again: 4 x 4096 columns 528 and 529, with two
    steps in flight 617 and 631, four warps 603 at best; 4 x 7168 905 and 918, 1077 and 1109, 953.
    """
    warps, stages = ((8,), (2, 3)) if device.vendor == "nvidia" else ((4, 8), (1, 2))
    few = tuple(config(64, w, s) for w in warps for s in stages)
    return ({"config": few, "together": (True,), "again": (False, True)},)


def sums_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return tile(fewest_tokens(call, device), 1), ()


def sums_space(call: SiteCall, device: Device) -> tuple[Grid, ...]:
    fewest = fewest_tokens(call, device)
    return ({"config": tuple(tile(fewest * more, w) for more in (1, 2, 4, 8) for w in (1, 4))},)


def fewest_tokens(call: SiteCall, device: Device) -> int:
    """As many tokens as fill a warp, with 16 bytes of dcomb a thread."""
    return max(1, 4 * device.warp_size // power_of_two(call.n * call.n))


projection_default, projection_space = of_mixes(mixes.backward_default), of_mixes(mixes.backward_space)
