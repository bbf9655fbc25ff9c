"""What a config of quantize is chosen for, the config taken untuned, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items
from helion_sinkhorn.runtime.views import VECTOR_BYTES

GROUPS = 16, 32, 64, 128, 256
"""Columns of a group that the kernel takes: powers of two, of which a thread has 16 bytes."""


@dataclass(frozen=True)
class QuantizeCall(Keyed):
    """The dtype and the columns of what is rounded, those of a group, and the form and place of its scale."""

    dtype: str
    columns: int
    group: int
    scales: str
    layout: str

    def __str__(self) -> str:
        return f"{self.dtype} {self.columns} {self.group} {self.scales} {self.layout}"


def config(call: QuantizeCall, device: Device, warps: int, vectors: int = 1) -> Items:
    """Blocks of `vectors` 16-byte loads a thread."""
    size = 4 if call.dtype == "float32" else 2
    groups = warps * device.warp_size * vectors * VECTOR_BYTES // (size * call.group)
    return ("block_sizes", (groups,)), ("num_warps", warps)


def default(call: QuantizeCall, device: Device) -> tuple[Items, Items]:
    return config(call, device, 4), ()


def space(call: QuantizeCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(config(call, device, w, v) for w in (1, 2, 4, 8) for v in (1, 2))},)
