"""Sums over rows and columns of C matrices (n, m, C) in PyTorch, with bits independent of other matrices.

In torch.sum the order of additions depends on the shape of the whole tensor and on the number of threads,
except for contiguous lines, each of which it sums by itself.  So lines of one side are contiguous where they
are long.  All other sums are added up by halves, short lines with matrices side by side, since each would
cost a call of an inner loop.  Only n and m decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from helion_sinkhorn.runtime.pieces import halves

LONG = 16
"""Entries from which on lines are contiguous, if other lines are as long."""
VERY_LONG = 64
"""Entries from which on they are contiguous beside short ones."""
CACHE_BYTES = 1 << 19
"""Bytes of float32 matrices in a slice of short lines, so that their results stay in a core's cache."""
CACHE_BYTES_OF_LONG = 1 << 21
"""Bytes in a slice of contiguous matrices, which with their terms stay in the last cache.

In a core's cache, 256 KB, calls cost more than memory: 64 of 128 x 128 take 17 ms, and here 7.
"""
LARGE = 2048
"""Entries of a matrix from which on a division costs more than one more call for reciprocals."""
SIDE_BY_SIDE = 16
"""Matrices from which on small ones lie side by side; fewer are vectorised over their entries."""


def contiguous_axis(x: torch.Tensor) -> int | None:
    """The axis of x (n, m, C) along which its lines are contiguous; None where matrices lie side by side.

    On a CPU only, and not of a single line, which torch.sum shares between threads.
    """
    n, m = x.shape[:2]
    if x.dim() != 3 or x.device.type != "cpu" or min(n, m) < 2:
        return None
    for axis, size, other in ((1, m, n), (0, n, m)):
        if size >= VERY_LONG or min(size, other) >= LONG:
            return axis
    return None


def matrices_of_slice(x: torch.Tensor) -> int:
    """How many of x (n, m, C) to work on at a time."""
    size = x.size(0) * x.size(1) * 4
    if contiguous_axis(x) is not None:
        return max(1, CACHE_BYTES_OF_LONG // size)
    return max(SIDE_BY_SIDE, CACHE_BYTES // size)


def laid_out(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x (n, m, C), stored as its lines are summed: as (C, n, m), (C, m, n), or side by side as (n, m, C).

    Of few matrices with short lines the entries are vectorised over, and they are stored as (C, n, m) too.
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

    Each result is a view that the next result over the same axis overwrites.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self.terms = torch.empty_like(like)
        self._contiguous = contiguous_axis(like)
        self._over: dict[int, tuple[Sequence[Callable], torch.Tensor]] = {}
        is_large = like.dim() == 3 and like.size(0) * like.size(1) >= LARGE
        self.quotient = _by_reciprocal if is_large else torch.div

    def over(self, axis: int) -> tuple[Sequence[Callable], torch.Tensor]:
        """(the calls that add up the terms over an axis, a view of their sums).

        A loop makes these calls itself, since a function around them would take a tenth of the time of small
        matrices.
        """
        if axis not in self._over:
            sums, calls = self.terms.select(axis, 0), []
            if axis == self._contiguous:
                sums = torch.empty_like(sums)
                calls.append(partial(torch.sum, self.terms, axis, out=sums))
            else:
                for into, other in halves(self.terms, axis):
                    calls.append(partial(into.add_, other))
            self._over[axis] = calls, sums
        return self._over[axis]

    def of_products(self, axis: int, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The sum of a b."""
        calls, sums = self.over(axis)
        torch.mul(a, b, out=self.terms)
        for call in calls:
            call()
        return sums

    def total(self, axis: int, a: torch.Tensor) -> torch.Tensor:
        """The sum of a."""
        calls, sums = self.over(axis)
        if axis == self._contiguous:
            return torch.sum(a, axis, out=sums)
        self.terms.copy_(a)
        for call in calls:
            call()
        return sums
