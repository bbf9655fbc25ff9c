"""Gradients that are computed only if they are requested.

The operator of a gradient has an argument that says which results are wanted, like `output_mask` in PyTorch.
A gradient that is not wanted is None inside the operator, which returns an empty tensor for it, since a
result in a schema is a tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

Some = torch.Tensor | None


def room_for(like: Sequence[torch.Tensor], wanted: Sequence[bool]) -> tuple[Some, ...]:
    """Contiguous memory for the gradient of each tensor; None for gradients that are not wanted."""
    return tuple(
        [
            torch.empty(t.shape, dtype=t.dtype, device=t.device) if w else None
            for t, w in zip(like, wanted, strict=True)
        ]
    )


def all_of(tensors: Sequence[Some]) -> tuple[bool, ...]:
    """All that are not None."""
    return tuple([t is not None for t in tensors])


def only(results: Sequence[Some], wanted: Sequence[bool]) -> tuple[Some, ...]:
    """The results that are wanted, and None for the others."""
    return tuple([t if w else None for t, w in zip(results, wanted, strict=True)])


def filled(results: Sequence[Some], like: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Results as an operator returns them: for each None a tensor without entries, with the dimensions of
    its tensor in `like`, by which DTensor may shard it.
    """
    return tuple(
        [t.new_empty((0,) * t.dim()) if r is None else r for r, t in zip(results, like, strict=True)]
    )


def cast(gradient: Some, like: torch.Tensor) -> Some:
    """A gradient in the dtype of its tensor, or None."""
    return None if gradient is None else gradient.to(like.dtype)
