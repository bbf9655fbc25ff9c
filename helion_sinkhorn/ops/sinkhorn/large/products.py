"""Products of matrices with vectors, and sums over lines, in PyTorch, for one matrix or for many.

A CPU takes large matrices (n, m) one by one, by its BLAS, and small ones (B, n, m) many at a time, line by
line; in both cases a matrix's bits do not depend on other matrices.  On other devices they may.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.batched_products import fewest, products
from helion_sinkhorn.runtime.pieces import sum_last

RUN = 16
"""The most rows that a CPU's BLAS may add up one after another.

A sum of 1024 equal terms in one run is wrong by 1e-5, since each addition rounds to the same side."""
ACROSS = 256
"""The most columns that it may add up in one run; within a row it adds in several lanes."""

CACHED = 1 << 16
"""Up to so many entries, products followed by their sums take less time than several runs.

They take 8 us instead of 17 for 129 x 129.  So small, a CPU takes matrices one by one only if sharded.
"""


def by_lines(x: torch.Tensor) -> bool:
    """Whether these are small matrices on a CPU, which are summed line by line."""
    return x.dim() == 3 and x.device.type == "cpu"


def total(d: torch.Tensor, axis: int) -> torch.Tensor:
    """The sums over axis -1, a number for each row, or -2, a number for each column."""
    if not by_lines(d):
        return d.sum(axis)
    return sum_last(d.clone() if axis == -1 else d.mT.clone(memory_format=torch.contiguous_format))


class Products:
    """Products of A with vectors: `rows` returns a sum for each row, `columns` for each column."""

    def __init__(self, a: torch.Tensor) -> None:
        self._a = a
        self._lines = by_lines(a)
        self._alone = a.dim() == 2
        if self._lines:
            self._turned = a.mT.contiguous()
        elif self._alone:
            self._terms = torch.empty_like(a) if a.numel() <= CACHED else None
            n = a.size(0) // RUN * RUN
            self._blocks = a[:n].view(-1, RUN, a.size(1)) if n else None
            self._rest = a[n:].t() if n < a.size(0) else None
            self._parts = a.split(ACROSS, 1)

    def rows(self, v: torch.Tensor, p: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        """A v, plus eps p."""
        if self._alone:
            (first, *parts), (w, *others) = self._parts, v.split(ACROSS)
            made = torch.mv(first, w) if p is None else torch.addmv(p, first, w, beta=eps)
            for part, other in zip(parts, others, strict=True):
                made.addmv_(part, other)
            return made
        if self._lines:
            return plus(sum_last(self._a * v.unsqueeze(-2)), p, eps)
        return plus(torch.bmm(self._a, v.unsqueeze(-1)).squeeze(-1), p, eps)

    def columns(self, u: torch.Tensor, p: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        """A' u, plus eps p."""
        if self._lines:
            return plus(sum_last(self._turned * u.unsqueeze(-2)), p, eps)
        if not self._alone:
            return plus(torch.bmm(u.unsqueeze(-2), self._a).squeeze(-2), p, eps)
        if self._terms is not None:
            return plus(torch.mul(self._a, u.unsqueeze(-1), out=self._terms).sum(-2), p, eps)
        if self._blocks is None:
            return plus(torch.mv(self._rest, u), p, eps)
        n = self._blocks.size(0) * RUN
        made = torch.bmm(u[:n].view(-1, 1, RUN), self._blocks).sum((0, 1))
        if self._rest is not None:
            made.addmv_(self._rest, u[n:])
        return plus(made, p, eps)


def plus(made: torch.Tensor, p: torch.Tensor | None, eps: float) -> torch.Tensor:
    """made + eps p, in place."""
    return made if p is None else made.add_(p, alpha=eps)


def less_products(
    d: torch.Tensor, a: torch.Tensor | None, lefts: list[torch.Tensor], rights: list[torch.Tensor]
) -> None:
    """d <- d - a * sum_k left_k right_k', or without a, in place."""
    left, right = torch.stack(lefts, -1), torch.stack(rights, -2)
    if by_lines(d):
        made = products(left, right, fewest(d.size(1) * d.size(2), d.device))
    else:
        made = left @ right
    if a is None:
        d.sub_(made)
    else:
        d.addcmul_(a, made, value=-1.0)


def written(a: torch.Tensor, u: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> None:
    """Write out = diag(u) a diag(v), rounded once; a is overwritten."""
    torch.mul(a.mul_(u.unsqueeze(-1)), v.unsqueeze(-2), out=out)
