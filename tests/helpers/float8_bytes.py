"""Results in float8 beside others, byte by byte."""

from __future__ import annotations

from collections.abc import Iterable

import torch


def assert_same(tensors: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    for t, like in zip(tensors, expected, strict=True):
        assert (t.dtype, t.shape, t.stride()) == (like.dtype, like.shape, like.stride())
        assert torch.equal(bytes_of(t), bytes_of(like))


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8)
