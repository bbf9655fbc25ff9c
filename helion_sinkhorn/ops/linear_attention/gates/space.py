"""The default of the kernel of gate gradients, and what the tuner tries."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall, matrix_unit_tile
from helion_sinkhorn.runtime.space import Grid, Items


def gates_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    return matrix_unit_tile(4, 1), ()


def gates_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(matrix_unit_tile(w, s) for w in (4, 8) for s in (1, 2))},)
