"""Vectorised PyTorch over many tokens: little memory beside the results, bits of a token that are its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

ENTRIES = 1 << 18
"""Entries of the streams worked on at a time: 1 MB of float32 for each temporary tensor."""
SHORT = 16
"""Entries of a line that are summed by halves: a vector of AVX-512, which torch.sum begins with."""
GRAIN = 32768
"""Entries from which on torch shares one sum between threads."""


computing: Callable[[torch.dtype], torch.dtype] = {
    torch.float64: torch.float64,
    **dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float32),
}.__getitem__
"""The type of the arithmetic: float64 for float64, float32 for the others."""


def pieces(tokens: int, entries: int, least: int = 1) -> Iterator[slice]:
    """Slices of the tokens, by the entries of a token; all but the last have at least so many tokens."""
    step = max(least, ENTRIES // max(1, entries))
    return map(slice, range(0, tokens, step), range(step, tokens + step, step))


def halves(terms: torch.Tensor, axis: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Views of terms: each second one added to its first, in turn, leaves the sum over the axis at index 0.

    torch.sum takes the order of its additions from the shape of the whole tensor, and with it a token's bits.
    """
    found = []
    while terms.size(axis) > 1:
        terms, other = terms.chunk(2, axis)
        odd = terms.size(axis) > other.size(axis)
        found.append((terms.narrow(axis, 0, other.size(axis)) if odd else terms, other))
    return found


def sum_over(terms: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum over an axis, by halves; terms are lost."""
    for into, other in halves(terms, axis):
        into.add_(other)
    return terms.select(axis, 0)


def sum_last(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension of terms, which are lost."""
    # on a CPU torch.sum adds each contiguous line alone; not short ones, nor a single one on many threads
    if terms.device.type == "cpu" and SHORT <= terms.size(-1) < GRAIN:
        # products keep the strides of strided factors, and sums take their order from them
        return terms.contiguous().sum(-1)
    return sum_over(terms, -1)
