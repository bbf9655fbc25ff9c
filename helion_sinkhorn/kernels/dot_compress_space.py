"""What a dot compress config is chosen for, the config taken untuned, and what the tuner tries."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key, key_of

if TYPE_CHECKING:  # KERNELS names what stands here
    from helion_sinkhorn.kernels import Grid, Items

SMALLEST_BLOCK = 16
"""Least extent of a matrix product on all of the devices."""
REGISTER_ENTRIES = 256 * 64
"""Entries of b that a program sums in registers: 64 of each of 256 threads."""


@dataclass(frozen=True)
class DotCall:
    """The shape without the batch; parts is 2 for a precise intermediate."""

    dtype: str
    m: int
    d: int
    k: int
    parts: int

    @property
    def key(self) -> Key:
        """What a stored entry is found by."""
        return key_of(asdict(self))

    @classmethod
    def of(cls, key: Key) -> DotCall:
        """The call with this key."""
        return cls(**dict(key))

    @property
    def blocks(self) -> tuple[int, int]:
        """Extents of the block of b that a program sums at a time."""
        block_k = padded(self.k)
        return min(padded(self.d), max(SMALLEST_BLOCK, REGISTER_ENTRIES // block_k)), block_k

    @property
    def is_wide(self) -> bool:
        """Whether b has several blocks."""
        return self.d > self.blocks[0]

    def __str__(self) -> str:
        return f"{self.dtype} {self.m}x({self.d},{self.k})" + (" precise" if self.parts == 2 else "")


def padded(extent: int) -> int:
    """The power of two that a product takes for an extent."""
    return max(SMALLEST_BLOCK, 1 << (extent - 1).bit_length())


def most_splits(call: DotCall, device: Device) -> int:
    """Programs that may share an element: each with 64 rows or more and a slice of b to add up.

    They wait for one another, which is safe where programs start in the order of the grid.  NVIDIA's do.
    """
    if device.vendor != "nvidia":
        return 1
    return max(1, min(16, call.blocks[0] // SMALLEST_BLOCK, call.m // 64))


def ring(device: Device, splits: int) -> int:
    """Elements whose partial sums are kept: all that two programs a compute unit can be at work on."""
    return 2 * device.compute_units // splits + 1


def tile(rows: tuple[int, int], warps: int, stages: int) -> Items:
    return ("block_sizes", rows), ("num_warps", warps), ("num_stages", stages)


def shared_by(call: DotCall, device: Device, splits: int) -> Items:
    """The variant with so many programs an element, or as many as there may be."""
    splits = min(splits, 1 << (most_splits(call, device).bit_length() - 1))
    return ("splits", splits), ("ring", ring(device, splits))


def matrix_units(device: Device) -> tuple[Items, ...]:
    """AMD's choices: the shape of the matrix instruction (0 is the compiler's) and waves to leave room for."""
    if device.vendor != "amd":
        return ((),)
    return tuple(
        (("matrix_instr_nonkdim", shape), ("waves_per_eu", waves)) for shape in (0, 16, 32) for waves in (1, 2)
    )
