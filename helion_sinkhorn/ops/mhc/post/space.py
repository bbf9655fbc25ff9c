"""The properties of a call that choose configs of hc_post, the defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, by_loads, largest_run, power_of_two
from helion_sinkhorn.runtime.views import VECTOR_BYTES

BACKWARD_WARPS = 4


@dataclass(frozen=True)
class PostCall(Keyed):
    """The dtype of the streams, how many there are, and their columns."""

    dtype: str
    n: int
    columns: int

    @property
    def run(self) -> int:
        """Columns that a thread reads at once: 16 bytes if they divide a row, fewer with more than 8 streams.

        They are at most half a row, since Helion drops the index of an axis of one piece
        (docs/dev/helion.md).
        """
        entries = VECTOR_BYTES // (4 if self.dtype == "float32" else 2)
        return max(1, min(largest_run(self.columns, entries if self.n <= 8 else 2), self.columns // 2))

    @property
    def served(self) -> int:
        """Input streams that a program of the backward takes; a thread has at most 64 sums, n for each."""
        return self.n if self.n <= 8 else 4

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.columns}"


def backward_config(call: PostCall, device: Device, warps: int, stages: int) -> Items:
    """One token a block, a piece of its columns for each thread; `stages` blocks are loaded at a time."""
    block = min(power_of_two(call.columns // call.run), warps * device.warp_size)
    return ("block_sizes", (block, 1)), ("num_warps", warps), ("range_num_stages", (0, stages))


def forward_default(call: PostCall, device: Device) -> tuple[Items, Items]:
    return by_loads(call, device, 4), ()


def backward_default(call: PostCall, device: Device) -> tuple[Items, Items]:
    return backward_config(call, device, BACKWARD_WARPS, 3 if device.vendor == "nvidia" else 0), ()


def forward_space(call: PostCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(by_loads(call, device, w, v) for w in (1, 2, 4, 8) for v in (1, 2))},)


def backward_space(call: PostCall, device: Device) -> tuple[Grid, ...]:
    """Configs with the default's block only: another would add up a token's columns in another order."""
    return ({"config": tuple(backward_config(call, device, BACKWARD_WARPS, s) for s in (0, 2, 3))},)
