"""Sums over rows and columns of C matrices (n, m, C) in PyTorch, with bits independent of other matrices.

In torch.sum the order of additions depends on the shape of the whole tensor and on the number of threads,
except for contiguous lines, each of which it sums by itself.  So long lines are contiguous, those of columns
in a transposed copy.  Short lines would cost a call of its inner loop each: their sums are added up by
halves, beside one another along the other side if that is very long, and else with matrices side by side.
Only n and m decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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


def contiguous_axis(n: int, m: int, device: torch.device) -> int | None:
    """The axis of matrices (n, m, C) along which lines are contiguous; None where matrices lie side by side.

    A contiguous line is summed by itself, which torch.sum does on a CPU only.  The axis is not that of a
    single line, which torch.sum shares between threads.
    """
    if device.type != "cpu" or min(n, m) < 2:
        return None
    if min(n, m) >= LONG or m >= VERY_LONG:
        return 1
    return 0 if n >= VERY_LONG else None


def matrices_of_slice(n: int, m: int, axis: int | None) -> int:
    """How many matrices (n, m) to work on at a time, for the axis of `contiguous_axis`."""
    size = n * m * 4
    return max(SIDE_BY_SIDE, CACHE_BYTES // size) if axis is None else max(1, CACHE_BYTES_OF_LONG // size)


def slices(first: str, *tensors: torch.Tensor) -> tuple[int | None, Iterator[tuple[torch.Tensor, ...]]]:
    """(the contiguous axis, slices (lead, trail, C) of tensors of one shape).

    A slice has the matrices that are worked on at a time.
    """
    n, m = tensors[0].shape[-2:]
    order = 1, 2, 0
    if first != "rows":
        n, m, order = m, n, (2, 1, 0)
    axis = contiguous_axis(n, m, tensors[0].device)
    count = matrices_of_slice(n, m, axis)
    parts = [t.reshape(-1, *t.shape[-2:]).permute(order).split(count, -1) for t in tensors]
    return axis, zip(*parts, strict=True)


def laid_out(x: torch.Tensor, dtype: torch.dtype, axis: int | None) -> torch.Tensor:
    """x (n, m, C), stored as its lines are summed: as (C, n, m), (C, m, n), or side by side as (n, m, C).

    Few matrices with short lines are stored as (C, n, m) too, and vectorised over their entries.
    """
    if axis == 0:
        return x.permute(2, 1, 0).to(dtype).contiguous().permute(2, 1, 0)
    if axis == 1 or x.size(-1) < SIDE_BY_SIDE:
        return x.permute(2, 0, 1).to(dtype).contiguous().permute(1, 2, 0)
    return x.to(dtype).contiguous()


def _by_reciprocal(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, b.reciprocal(), out=out)


class Sums:
    """Sums of terms in the layout of `laid_out`, of matrices or vectors, in one buffer with views made once.

    Each result is a view that the next result overwrites.  Vectors have no contiguous axis.
    """

    def __init__(self, like: torch.Tensor, axis: int | None = None) -> None:
        self.terms = torch.empty_like(like)
        self._contiguous = axis
        self._long = axis == 1 and min(like.shape[:2]) >= LONG
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
