"""Vectorised PyTorch over many tokens, with little memory and bits that do not depend on other tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch

ENTRIES = 1 << 18
"""Entries of the streams in one piece: 1 MB of float32 for each temporary tensor."""
SHORT = 16
"""Up to so many entries a line is summed by halves: a vector of AVX-512, which torch.sum begins with."""
GRAIN = 32768
"""Entries from which on torch shares one sum between threads."""


COMPUTING = {
    torch.float64: torch.float64,
    **dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float32),
}
"""The type of the arithmetic: float64 for float64, float32 for the others."""


def pieces(tokens: int, entries: int, least: int = 1) -> Iterator[slice]:
    """Slices of the tokens by the entries of a token; all but the last have at least `least` tokens."""
    step = max(least, ENTRIES // max(1, entries))
    return map(slice, range(0, tokens, step), range(step, tokens + step, step))


def halves(terms: torch.Tensor, axis: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pairs of views of terms; adding each second to its first, in order, leaves the axis's sum at index 0.

    torch.sum chooses the order of additions, and with it a token's bits, by the shape of the whole tensor.
    """
    pairs = []
    while terms.size(axis) > 1:
        terms, other = terms.chunk(2, axis)
        odd = terms.size(axis) > other.size(axis)
        pairs.append((terms.narrow(axis, 0, other.size(axis)) if odd else terms, other))
    return pairs


def sum_over(terms: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum over an axis, by halves; overwrites terms."""
    for into, other in halves(terms, axis):
        into.add_(other)
    return terms.select(axis, 0)


def sum_last(terms: torch.Tensor) -> torch.Tensor:
    """The sum over the last dimension of terms, which it may overwrite."""
    # on a CPU torch.sum adds each contiguous line by itself, except short ones and a single one on threads
    if terms.device.type == "cpu" and SHORT <= terms.size(-1) < GRAIN:
        # products keep the strides of their factors, which decide the order of sums
        return terms.contiguous().sum(-1)
    return sum_over(terms, -1)
