"""Sums over rows and columns of (n, m, C), C matrices, in PyTorch: a matrix's bits are its own.

torch.sum takes the order of its additions from the shape of the whole tensor, but for lines that are
contiguous, each of which it sums by itself.  So long lines are contiguous, for columns in a transposed copy.
Short ones would cost a call of its inner loop each: matrices stand side by side, and sums are halves that are
added.  Only n and m decide which of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from helion_sinkhorn.runtime.pieces import halves

LONG = 16
"""Entries from which on a line is summed by itself."""
CACHE_BYTES = 1 << 19
"""Float32 matrices in a slice of short lines: what is made of them stays in a core's cache."""
CACHE_BYTES_OF_LONG = 1 << 18
"""The same of long lines, which have a transposed copy and buffers for both."""
LARGE = 2048
"""Entries from which on a matrix's division costs more than one more call, which takes the reciprocals."""
SIDE_BY_SIDE = 16
"""Matrices from which on small ones stand side by side; of fewer the entries make the vectors."""


def are_long(x: torch.Tensor) -> bool:
    """Whether lines of x (n, m, C) are summed by themselves, which torch.sum does on a CPU only."""
    return x.dim() == 3 and min(x.size(0), x.size(1)) >= LONG and x.device.type == "cpu"


def matrices_of_slice(x: torch.Tensor) -> int:
    """How many of x (n, m, C) to work on at a time."""
    size = x.size(0) * x.size(1) * 4
    if are_long(x):
        return max(1, CACHE_BYTES_OF_LONG // size)
    return max(SIDE_BY_SIDE, CACHE_BYTES // size)


def laid_out(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x (n, m, C), in memory (C, n, m) where lines are long or matrices few, and else (n, m, C)."""
    if x.size(-1) < SIDE_BY_SIDE or are_long(x):
        return x.permute(2, 0, 1).to(dtype).contiguous().permute(1, 2, 0)
    return x.to(dtype).contiguous()


def _by_reciprocal(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    return torch.mul(a, b.reciprocal(), out=out)


class Sums:
    """Sums of terms like x of `laid_out`, or like vectors of it, in one buffer whose views are made once.

    Each result is a view that the next one overwrites.
    """

    def __init__(self, like: torch.Tensor) -> None:
        self.terms = torch.empty_like(like)
        self._long = are_long(like)
        self._turned = self.turned(self.terms, copy=False)
        self._over: dict[tuple[int, bool], tuple[torch.Tensor, tuple[Callable, ...], torch.Tensor]] = {}
        is_large = like.dim() == 3 and like.size(0) * like.size(1) >= LARGE
        self.quotient = _by_reciprocal if is_large else torch.div

    def turned(self, a: torch.Tensor, copy: bool = True) -> torch.Tensor:
        """a as `over` has terms that are turned: contiguous columns if they are long."""
        if not self._long:
            return a
        turned = a.new_empty(a.size(2), a.size(1), a.size(0)).permute(2, 1, 0)
        return turned.copy_(a) if copy else turned

    def over(
        self, axis: int, turned: bool = False
    ) -> tuple[torch.Tensor, tuple[Callable, ...], torch.Tensor]:
        """(where the terms go, the calls that add them up over an axis, where their sums are then).

        A loop makes these calls itself: a function around them would cost it a tenth of small matrices' time.
        """
        turned = turned and self._long
        if (axis, turned) not in self._over:
            terms = self._turned if turned else self.terms
            if turned or (self._long and axis):
                sums = torch.empty_like(self.terms.select(axis, 0))
                calls = (partial(torch.sum, terms, axis, out=sums),)
            else:
                sums = terms.select(axis, 0)
                calls = tuple(partial(into.add_, other) for into, other in halves(terms, axis))
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
        """The sum of a, or of what `turned` made of it."""
        terms, calls, sums = self.over(axis, turned)
        if self._long and (turned or axis):
            return torch.sum(a, axis, out=sums)
        terms.copy_(a)
        for call in calls:
            call()
        return sums
