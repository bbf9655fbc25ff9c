"""The properties of a call that choose configs of hc_pre, the defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, by_loads, default_only, streamed


@dataclass(frozen=True)
class PreCall(Keyed):
    """The dtype of the streams, how many there are, and their columns."""

    dtype: str
    n: int
    columns: int

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.columns}"


def by_columns(call: PreCall, device: Device, warps: int, vectors: int = 1) -> Items:
    """One token a program, which takes the token's columns in blocks of the size of `by_loads`.

    On AMD short rows get fewer waves, since several waves that hold the same columns would add them up in
    different orders.
    """
    _, columns = streamed(call, device, warps, vectors)
    while device.vendor == "amd" and warps > 1 and streamed(call, device, warps // 2, vectors)[1] == columns:
        warps //= 2
    return ("block_sizes", (columns, 1)), ("num_warps", warps)


def forward_default(call: PreCall, device: Device) -> tuple[Items, Items]:
    return by_loads(call, device, 4), ()


def backward_default(call: PreCall, device: Device) -> tuple[Items, Items]:
    # a thread keeps n sums for each of its columns
    if device.vendor == "amd":
        return by_columns(call, device, 4 if call.n <= 8 else 8), ()
    # 64 sums for four streams of 16-bit numbers.  On an H200 128 and 8192 tokens of 4 x 4096 take 2.7 and
    # 148 us, and with four warps and half as many columns 3.5 and 151 us
    vectors = 2 if call.n <= 4 and call.dtype != "float32" else 1
    _, block = streamed(call, device, 8, vectors)
    # where the last block is cut short, eight warps spill
    return by_columns(call, device, 8 if call.n > 8 or call.columns % block == 0 else 4, vectors), ()


def forward_space(call: PreCall, device: Device) -> tuple[Grid, ...]:
    few = [by_loads(call, device, w, v) for w in (1, 2, 4, 8) for v in (1, 2)]
    if device.vendor == "nvidia":
        # both were found by EFFORT=full with 8192 tokens of 4 x 4096 on an H200.  Programs next to each other
        # that share columns instead of tokens take 85.0 us instead of 87.0 under Triton 3.6; loads that stay
        # in the L2 cache take 84.5 us instead of 86.7 under 3.9
        few += [(*by_loads(call, device, w), ("loop_orders", ((1, 0),))) for w in (4, 8)]
        stays = ("load_eviction_policies", ("last",) * (2 * call.n))
        few += [(*by_loads(call, device, w), stays) for w in (8, 16)]
    return ({"config": tuple(few)},)


# another block would add up a token's columns in another order
backward_space = default_only(backward_default)
