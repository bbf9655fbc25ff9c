"""The properties of a call that choose configs of hc_mixes, the defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two, staged, tile

CHUNK = 1024
"""Columns that one program of the forward adds up: fixed, so that a token's bits are the same in any batch.

On an H200 4 x 4096 columns in bfloat16 take 8.5 us for 128 tokens and 91 us for 8192; with chunks of 2048
columns 15 and 87 us.
"""
BLOCK_K = 64
"""Columns whose products a matrix unit adds up before they are added to the rest; fixed like CHUNK."""
MOST_ROWS = 32
"""Most rows of fn in a block."""


@dataclass(frozen=True)
class MixesCall(Keyed):
    """The dtype of the streams, the rows and columns of fn, and the precision requested."""

    dtype: str
    m: int
    columns: int
    precision: str

    @property
    def block_m(self) -> int:
        """Rows of fn in a block: at least the 16 of a matrix instruction."""
        return max(16, min(MOST_ROWS, power_of_two(self.m)))

    @property
    def parts(self) -> int:
        """Bfloat16 parts of a float32: two hold more than TF32's 11 bits, three all 24."""
        return 2 if self.precision == "tf32" else 3

    @property
    def dx_parts(self) -> int:
        """Parts of fn and of the upstream gradient for dx: two, 16 bits, for a dx rounded to 8 or 11 bits."""
        return self.parts if self.dtype == "float32" else 2

    @property
    def x_parts(self) -> int:
        """Parts of an entry of x."""
        return {"bfloat16": 1, "float16": 2}.get(self.dtype, self.parts)

    def __str__(self) -> str:
        return f"{self.dtype} {self.m}x{self.columns} {self.precision}"


def forward_config(rows: int, warps: int, stages: int) -> Items:
    """A config with `rows` tokens a program."""
    return staged((BLOCK_K, rows), warps, stages)


def backward_config(rows: int, columns: int, warps: int, stages: int) -> Items:
    """A config with `columns` of x a program, which takes `rows` tokens at a time."""
    return staged((rows, columns), warps, stages)


def split_default(call: MixesCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 512)), ("num_warps", 4)), ()


def split_space(call: MixesCall, device: Device) -> tuple[Grid, ...]:
    sizes = [(("block_sizes", (1, 128 * w)), ("num_warps", w)) for w in (1, 2, 4, 8)]
    return ({"config": tuple(sizes)},)


def partials_default(call: MixesCall, device: Device) -> tuple[Items, Items]:
    # on an H200 8192 tokens of 4 x 4096 in float32 take 191 us with 64 tokens a program, 264 with 128
    size = (128, 8) if call.dtype == "float16" else (64, 4)
    return forward_config(*size, 3 if device.vendor == "nvidia" else 1), ()


def partials_space(call: MixesCall, device: Device) -> tuple[Grid, ...]:
    stages = (2, 3, 4) if device.vendor == "nvidia" else (1, 2)
    few = [forward_config(r, w, s) for r, w in ((64, 4), (128, 4), (128, 8)) for s in stages]
    return ({"config": tuple(few)},)


def reduce_default(call: MixesCall, device: Device) -> tuple[Items, Items]:
    return tile(fewest_rows(call, device), 1), ()


def reduce_space(call: MixesCall, device: Device) -> tuple[Grid, ...]:
    fewest = fewest_rows(call, device)
    return ({"config": tuple(tile(fewest * more, w) for more in (1, 2, 4, 8) for w in (1, 4))},)


def fewest_rows(call: MixesCall, device: Device) -> int:
    """The fewest tokens of a block: on AMD as many as fill a wave with 16 bytes a lane.

    With fewer tokens lanes hold copies, and AMD's rotations add up the sums along a row in another order in
    each copy.
    """
    return 4 if device.vendor == "nvidia" else max(4, 4 * device.warp_size // power_of_two(call.m))


def backward_default(call: MixesCall, device: Device) -> tuple[Items, Items]:
    if device.vendor == "amd":
        return backward_config(64, 64, 8, 1), (("shares", 4),)
    # on an H200 8192 tokens of 4 x 4096 take 201 us in bfloat16, 253 in float16 and 424 in float32; with
    # eight warps, which share the products of 64 tokens, 380, 491 and 1016
    if call.columns % 8:
        config = backward_config(64, 64, 8, 2)
    elif call.dtype == "float32":
        config = backward_config(64, 64, 4, 3)
    else:
        config = backward_config(64, 128, 4, 3 if call.dtype == "bfloat16" else 2)
    return config, (("shares", 4),)


def backward_space(call: MixesCall, device: Device) -> tuple[Grid, ...]:
    stages = (2, 3, 4) if device.vendor == "nvidia" else (1, 2)
    sizes = (64, 64, 4), (64, 64, 8), (64, 128, 4), (64, 128, 8)
    few = [backward_config(*size, s) for size in sizes for s in stages]
    return ({"config": tuple(few), "shares": (4, 8)},)
