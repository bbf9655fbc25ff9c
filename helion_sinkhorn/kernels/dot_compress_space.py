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

    def __str__(self) -> str:
        return f"{self.dtype} {self.m}x({self.d},{self.k})" + (" precise" if self.parts == 2 else "")


def padded(extent: int) -> int:
    """The power of two that a product takes for an extent."""
    return max(SMALLEST_BLOCK, 1 << (extent - 1).bit_length())
