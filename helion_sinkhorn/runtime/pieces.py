"""Vectorised PyTorch over many tokens: little memory beside the results, bits of a token that are its own."""

from __future__ import annotations

from collections.abc import Iterator

import torch

ENTRIES = 1 << 20
"""Entries of the streams worked on at a time: 4 MB of float32 for each temporary tensor."""


def computing(dtype: torch.dtype) -> torch.dtype:
    """The type of the arithmetic: float64 for float64, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def pieces(tokens: int, entries: int) -> Iterator[slice]:
    """Slices of the tokens, each token of so many entries."""
    step = max(1, ENTRIES // entries)
    return (slice(start, start + step) for start in range(0, tokens, step))


def sum_last(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension, one half added to the other until a column is left; terms are lost.

    torch.sum takes the order of its additions from the shape of the whole tensor, and with it a token's bits.
    """
    size = terms.size(-1)
    while size > 1:
        kept = (size + 1) // 2
        terms[..., : size - kept] += terms[..., kept:size]
        size = kept
    return terms[..., 0]
