"""Sums over rows and columns of C matrices (n, m, C) in PyTorch, with bits independent of other matrices.

In torch.sum the order of additions depends on the shape of the whole tensor and on the number of threads,
except for contiguous lines, each of which it sums by itself.  So long lines are contiguous, those of columns
in a transposed copy.  Short lines would cost a call of its inner loop each: their sums are added up by
halves, beside one another along the other side if that is very long, and else with matrices side by side.
Only n and m decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from helion_sinkhorn.runtime.pieces import halves

LONG = 16
"""Entries from which on a line is summed by itself."""
CACHE_BYTES = 1 << 19
"""Bytes of float32 matrices in a slice of short lines, so that their results stay in a core's cache."""
CACHE_BYTES_OF_LONG = 1 << 21
"""Bytes in a slice of long lines, with a transposed copy and buffers for both in the last cache.

In a core's cache, 256 KB, calls cost more than memory: 64 of 128 x 128 take 17 ms, and here 7.
"""
VERY_LONG = 64
"""Entries from which on the long lines of a matrix whose other lines are short are summed by themselves."""
LARGE = 2048
"""Entries of a matrix from which on a division costs more than one more call for reciprocals."""
SIDE_BY_SIDE = 16
"""Matrices from which on small ones lie side by side; fewer are vectorised over their entries."""


def are_long(x: torch.Tensor) -> bool:
    """Whether each line of x (n, m, C) is summed by itself, which torch.sum does on a CPU only."""
    return x.dim() == 3 and min(x.size(0), x.size(1)) >= LONG and x.device.type == "cpu"


def contiguous_axis(x: torch.Tensor) -> int | None:
    """The axis of x (n, m, C) along which its lines are contiguous; None where matrices lie side by side.

    It is not that of a single line, which torch.sum shares between threads.
    """
    if are_long(x):
        return 1
    if x.dim() != 3 or x.device.type != "cpu" or min(x.size(0), x.size(1)) < 2:
        return None
    return next((axis for axis in (1, 0) if x.size(axis) >= VERY_LONG), None)


def matrices_of_slice(x: torch.Tensor) -> int:
    """How many of x (n, m, C) to work on at a time."""
    size = x.size(0) * x.size(1) * 4
    if contiguous_axis(x) is not None:
        return max(1, CACHE_BYTES_OF_LONG // size)
    return max(SIDE_BY_SIDE, CACHE_BYTES // size)


def laid_out(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x (n, m, C), stored as its lines are summed: as (C, n, m), (C, m, n), or side by side as (n, m, C).

    Few matrices with short lines are stored as (C, n, m) too, and vectorised over their entries.
    """
    axis = contiguous_axis(x)
    if axis == 0:
        return x.permute(2, 1, 0).to(dtype).contiguous().permute(2, 1, 0)
    if axis == 1 or x.size(-1) < SIDE_BY_SIDE:
        return x.permute(2, 0, 1).to(dtype).contiguous().permute(1, 2, 0)
    return x.to(dtype).contiguous()


def _by_reciprocal(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, b.reciprocal(), out=out)


class Sums:
    """Sums of terms in the layout of `laid_out`, of matrices or vectors, in one buffer with views made once.

    Each result is a view that the next result overwrites.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self.terms = torch.empty_like(like)
        self._long = are_long(like)
        self._contiguous = contiguous_axis(like)
        self._turned = self.turned(self.terms, copy=False)
        self._over: dict[tuple[int, bool], tuple[torch.Tensor, Sequence[Callable], torch.Tensor]] = {}
        is_large = like.dim() == 3 and like.size(0) * like.size(1) >= LARGE
        self.quotient = _by_reciprocal if is_large else torch.div

    def turned(self, a: torch.Tensor, copy: bool = True) -> torch.Tensor:
        """a in the layout of transposed terms of `over`: with contiguous columns if they are long."""
        if not self._long:
            return a
        turned = a.new_empty(a.size(2), a.size(1), a.size(0)).permute(2, 1, 0)
        return turned.copy_(a) if copy else turned

    def over(self, axis: int, turned: bool = False) -> tuple[torch.Tensor, Sequence[Callable], torch.Tensor]:
        """(a view for the terms, the calls that add them up over an axis, a view of their sums).

        A loop makes these calls itself, since a function around them would take a tenth of the time of small
        matrices.
        """
        turned = turned and self._long
        if (axis, turned) not in self._over:
            terms = self._turned if turned else self.terms
            if turned or axis == self._contiguous:
                sums = torch.empty_like(self.terms.select(axis, 0))
                calls = (partial(torch.sum, terms, axis, out=sums),)
            else:
                sums = terms.select(axis, 0)
                calls = []
                for into, other in halves(terms, axis):
                    calls.append(partial(into.add_, other))
            self._over[axis, turned] = terms, calls, sums
        return self._over[axis, turned]

    def of_products(self, axis: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a b."""
        terms, calls, sums = self.over(axis)
        torch.mul(a, b, out=terms)
        for call in calls:
            call()
        return sums

    def total(self, axis: int, a: torch.Tensor, turned: bool = False) -> torch.Tensor:
        """The sum of a, or of the result of `turned` for it."""
        terms, calls, sums = self.over(axis, turned)
        if axis == self._contiguous or (turned and self._long):
            return torch.sum(a, axis, out=sums)
        terms.copy_(a)
        for call in calls:
            call()
        return sums
