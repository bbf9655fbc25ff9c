"""What a dot compress config is chosen for, the config taken untuned, and what the tuner tries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items

SMALLEST_BLOCK = 16
"""The smallest extent of a matrix product on all devices."""


@dataclass(frozen=True)
class DotCall(Keyed):
    """The shape without the batch; parts is 2 for a precise intermediate."""

    dtype: str
    m: int
    d: int
    k: int
    parts: int

    @property
    def is_narrow(self) -> bool:
        """Whether matrix units take the operands directly; float32 is multiplied entry by entry."""
        return self.dtype != "float32"

    def __str__(self) -> str:
        return f"{self.dtype} {self.m}x({self.d},{self.k})" + (" precise" if self.parts == 2 else "")


def padded(extent: int) -> int:
    """An extent rounded up to the power of two that a product takes."""
    return max(SMALLEST_BLOCK, 1 << (extent - 1).bit_length())


def config(rows: int, warps: int, stages: int) -> Items:
    """A config with `rows` of x for each step, which loads `stages` steps at a time."""
    return ("block_sizes", (rows,)), ("num_warps", warps), ("num_stages", stages)


def block_of(call: DotCall, entries: int) -> int:
    """Columns of x in a block of `entries` with all columns of y, or half as many if some are padding."""
    entries = entries if call.d == padded(call.d) else entries // 2
    return max(SMALLEST_BLOCK, min(padded(call.d), entries // padded(call.k)))


FEWEST = {"block_d": 64, "rows": 512}
"""The smallest tile of `shrunk_to_fill`, for batches that would leave compute units idle."""


def shrunk_to_fill(variant: Items, call: DotCall, batch: int, device: Device) -> Items:
    """A default's variant with smaller tiles for small batches, so that programs fill the device.

    With 2048 rows a program 16 elements make 32 programs, on 132 compute units.  On an H200 `apply` then
    takes 32 us, and 9 us with 512 rows; `product` takes 27 us in blocks of 256 columns, and 12 us in blocks
    of 64.
    """
    sizes = dict(variant)
    wanted = device.compute_units * (3 if "rows" in sizes else 1)
    shrinks = "rows" if "rows" in sizes else "block_d"

    def programs() -> int:
        walks = -(-call.m // sizes["rows"]) if "rows" in sizes else 1
        return batch * walks * -(-call.d // sizes["block_d"])

    while programs() < wanted and sizes[shrinks] > FEWEST[shrinks]:
        sizes[shrinks] //= 2
    return tuple(sizes.items())


def product_default(call: DotCall, device: Device) -> tuple[Items, Items]:
    if not call.is_narrow:
        return config(32, 4, 2), (("block_d", block_of(call, 1 << 12)),)
    entries = (1 << 14) // call.parts
    if device.vendor == "amd" and call.d != padded(call.d):
        # masks take scalar registers, of which gfx950 spills 35 with blocks of 128 of 1000 columns
        entries //= 2
    return config(64, 4, in_flight(device)), (("block_d", block_of(call, entries)),)


def apply_default(call: DotCall, device: Device) -> tuple[Items, Items]:
    if not call.is_narrow:
        # 128 columns of y are too many sums for the registers of four warps
        warps = 4 if padded(call.k) <= 64 else 8
        return config(32, warps, 1), (("block_d", block_of(call, 1 << 12)), ("rows", 512))
    whole = block_of(call, 1 << 14)
    if whole < call.d:
        # b is read again for each block and tile, so fewer of both are loaded at a time
        return config(64, 8, 1), (("block_d", block_of(call, 1 << 12)), ("rows", 1024))
    # both parts of b and tiles of 32 rows exceed the registers of a wave of gfx942
    rows = 64 if device.vendor == "nvidia" else 32 // call.parts
    return config(rows, 4, in_flight(device)), (("block_d", whole), ("rows", 2048))


def expand_default(call: DotCall, device: Device) -> tuple[Items, Items]:
    if not call.is_narrow:
        columns = block_of(call, 1 << 12)
        return config(64, 4, 1), (("block_d", columns), ("depth", SMALLEST_BLOCK), ("rows", 512))
    columns = block_of(call, (1 << 13) // call.parts)
    return config(64, 4, in_flight(device)), (("block_d", columns), ("rows", 4096))


def in_flight(device: Device) -> int:
    """Steps loaded at a time, with which three blocks of four warps fit on an SM; AMD has less LDS."""
    return 3 if device.vendor == "nvidia" else 2


def matrix_units(device: Device) -> tuple[Items, ...]:
    """AMD's choices: the narrow matrix instruction, and registers for two waves on a scheduler.

    By default the compiler takes the instruction of width 32 and one wave; with four waves `product` spills.
    """
    if device.vendor != "amd":
        return ((),)
    return (), (("matrix_instr_nonkdim", 16),), (("waves_per_eu", 2),)


def configs(device: Device, *choices: tuple[int, int, int]) -> tuple[Items, ...]:
    return tuple((*config(*c), *units) for c in choices for units in matrix_units(device))


def blocks(call: DotCall, extents: Iterable[int]) -> tuple[int, ...]:
    """The extents that do not exceed the columns of x, each once."""
    return tuple(sorted({min(padded(call.d), e) for e in extents}))


def product_space(call: DotCall, device: Device) -> tuple[Grid, ...]:
    if not call.is_narrow:
        few = (32, 4, 2), (32, 4, 3), (32, 8, 2)
        return ({"config": configs(device, *few), "block_d": blocks(call, (32, 64, 128))},)
    return (
        {"config": configs(device, (32, 4, 3), (64, 4, 2), (64, 4, 3)), "block_d": blocks(call, (256,))},
        {"config": configs(device, (64, 4, 3), (64, 4, 4), (128, 4, 3)), "block_d": blocks(call, (64, 128))},
    )


def apply_space(call: DotCall, device: Device) -> tuple[Grid, ...]:
    if not call.is_narrow:
        few = (32, 4, 1), (64, 4, 1), (64, 4, 2)
        return ({"config": configs(device, *few), "block_d": blocks(call, (16, 32, 64)), "rows": (512,)},)
    few = configs(device, (32, 4, 3), (64, 4, 2), (64, 4, 3))
    return ({"config": few, "block_d": blocks(call, (256,)), "rows": (256, 512, 1024, 2048)},)


def expand_space(call: DotCall, device: Device) -> tuple[Grid, ...]:
    if not call.is_narrow:
        few = configs(device, (32, 8, 1), (64, 4, 1), (64, 4, 2), (64, 8, 1))
        columns = blocks(call, (64, 128))
        return ({"config": few, "block_d": columns, "depth": (SMALLEST_BLOCK,), "rows": (512,)},)
    rows = 256, 512, 1024, 2048, 4096
    return (
        {"config": configs(device, (64, 4, 2)), "block_d": blocks(call, (128,)), "rows": rows},
        {"config": configs(device, (64, 4, 3)), "block_d": blocks(call, (64, 128)), "rows": rows},
    )
