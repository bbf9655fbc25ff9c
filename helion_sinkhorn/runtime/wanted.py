"""Gradients that are made only where they are requested.

A gradient's operator is told which of its results are wanted, as `output_mask` tells the
gradients of PyTorch.  Inside the operator a gradient that is not wanted is None; the operator returns an
empty tensor in its place, since a result in a schema is a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Some = torch.Tensor | None


def room_for(like: Sequence[torch.Tensor], wanted: Sequence[bool]) -> tuple[Some, ...]:
    """Memory, contiguous, for a gradient of each tensor; None for those that are not wanted."""
    return tuple(
        [
            torch.empty(t.shape, dtype=t.dtype, device=t.device) if w else None
            for t, w in zip(like, wanted, strict=True)
        ]
    )


def all_of(tensors: Sequence[Some]) -> tuple[bool, ...]:
    """Every one that is there."""
    return tuple([t is not None for t in tensors])


def only(results: Sequence[Some], wanted: Sequence[bool]) -> tuple[Some, ...]:
    """The results that are wanted, None in the place of each other."""
    return tuple([t if w else None for t, w in zip(results, wanted, strict=True)])


def filled(results: Sequence[Some], like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Results as an operator returns them: for each that is None a tensor without entries.

    Args:
        like: for each result a tensor of as many dimensions, by which DTensor may shard it.
    """
    return tuple(
        [t.new_empty((0,) * t.dim()) if r is None else r for r, t in zip(results, like, strict=True)]
    )


def cast(gradient: Some, like: torch.Tensor) -> Some:
    """A gradient in the dtype of what it belongs to, if it was made."""
    return None if gradient is None else gradient.to(like.dtype)
