"""The vocabulary of configs: their parts, what the tuner tries, and tiles."""

from __future__ import annotations

from typing import Any

Items = tuple[tuple[str, Any], ...]


Grid = dict[str, tuple[Any, ...]]
"""Candidate values: "config" lists parts of Helion configs, every other name is a variant's values."""


def power_of_two(k: int) -> int:
    """The smallest power of two that is at least k: the extent Triton gives an axis of k."""
    return 1 << (k - 1).bit_length()


def largest_run(size: int, most: int) -> int:
    """Entries of an axis that one thread holds side by side: a power of two up to `most` that divides it."""
    return min(1 << (most.bit_length() - 1), size & -size)


def tile(block: int, warps: int) -> Items:
    """`block` matrices a block of `warps` warps."""
    return ("block_sizes", (block,)), ("num_warps", warps)
