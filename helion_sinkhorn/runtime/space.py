"""The vocabulary of configs: their parts, what the tuner tries, and tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.runtime.views import VECTOR_BYTES

Items = tuple[tuple[str, Any], ...]


Grid = dict[str, tuple[Any, ...]]
"""Candidate values: "config" lists parts of Helion configs, and every other name the values of a variant."""


def power_of_two(k: int) -> int:
    """The smallest power of two that is at least k: the extent Triton gives an axis of k."""
    return 1 << (k - 1).bit_length()


def largest_run(size: int, most: int) -> int:
    """Entries of an axis that one thread holds side by side: a power of two up to `most` that divides it."""
    return min(1 << (most.bit_length() - 1), size & -size)


def tile(block: int, warps: int) -> Items:
    """A config of `block` matrices and `warps` warps a program."""
    return ("block_sizes", (block,)), ("num_warps", warps)


def staged(blocks: tuple[int, ...], warps: int, stages: int) -> Items:
    """A config with these blocks and warps a program, which loads `stages` steps at a time."""
    return (
        ("block_sizes", blocks), ("num_warps", warps), ("num_stages", stages),
        ("range_num_stages", (0, stages)),
    )  # fmt: skip


def default_only(
    default: Callable[[Any, Device], tuple[Items, Items]],
) -> Callable[[Any, Device], tuple[Grid, ...]]:
    """The space of a kernel for which the tuner tries nothing but its default."""

    def space(call: Any, device: Device) -> tuple[Grid, ...]:
        config, variant = default(call, device)
        return ({"config": (config,), **{name: (value,) for name, value in variant}},)

    return space


def by_loads(call: Any, device: Device, warps: int, vectors: int = 1) -> Items:
    """Blocks of `streamed`: a thread makes `vectors` loads of 16 bytes, and shorter rows share a block."""
    return ("block_sizes", streamed(call, device, warps, vectors)), ("num_warps", warps)


def streamed(call: Any, device: Device, warps: int, vectors: int = 1) -> tuple[int, int]:
    """(rows, columns) of a block in which each thread takes `vectors` loads of 16 bytes of a row.

    call: has the dtype and the columns of a row; rows shorter than a block share it.
    """
    size = 4 if call.dtype == "float32" else 2
    entries = warps * device.warp_size * vectors * VECTOR_BYTES // size
    columns = min(power_of_two(call.columns), entries)
    return entries // columns, columns
