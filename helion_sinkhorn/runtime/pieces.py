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
    """The sum over the last dimension, by halves; terms are lost."""
    return sum_over(terms, -1)


class Sums:
    """Sums over axes 0 and 1 of terms (n, m, C), by halves, in one buffer whose views are made once."""

    def __init__(self, like: torch.Tensor) -> None:
        self.terms = torch.empty_like(like)
        self._halves = [halves(self.terms, axis) for axis in (0, 1)]
        self._first = [self.terms[0], self.terms[:, 0]]

    def total(self, axis: int, a: torch.Tensor) -> torch.Tensor:
        """The sum of a, as a view of the buffer."""
        self.terms.copy_(a)
        return self.added(axis)

    def of_products(self, axis: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a b, as a view of the buffer."""
        torch.mul(a, b, out=self.terms)
        return self.added(axis)

    def of_quotients(self, axis: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a / b, as a view of the buffer."""
        torch.div(a, b, out=self.terms)
        return self.added(axis)

    def added(self, axis: int) -> torch.Tensor:
        """The sum of what stands in `terms`."""
        for into, other in self._halves[axis]:
            into.add_(other)
        return self._first[axis]
