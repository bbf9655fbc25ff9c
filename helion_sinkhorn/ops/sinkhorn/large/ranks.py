"""Sums over lines that are shared out among processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.sinkhorn.large.products import Products, plus
from helion_sinkhorn.runtime.groups import reduce_over


class Ranks(NamedTuple):
    """The processes that share matrices (..., n, m), and the axis along which the matrices are split.

    Vectors with an entry for each line of the other axis are whole, and equal on all ranks.
    """

    groups: Sequence[str] = ()
    axis: int = 0
    """-2 if the rows are shared out, -1 if the columns are; 0 without groups."""
    lines: int = 0
    """The number of lines along the axis on all ranks together."""

    def size(self, x: torch.Tensor) -> tuple[int, int]:
        """(n, m) of whole matrices."""
        n, m = x.shape[-2:]
        return (self.lines if self.axis == -2 else n), (self.lines if self.axis == -1 else m)

    def add(self, sums: torch.Tensor, axis: int) -> torch.Tensor:
        """Add sums over an axis up over the parts of all ranks, in place."""
        return self._reduced(sums, axis, "SUM")

    def add_relative(self, top: torch.Tensor, sums: torch.Tensor, axis: int) -> None:
        """The same of sums relative to e^top, of which each rank has its own; both in place."""
        if axis == self.axis:
            most = self.largest(top.clone(memory_format=torch.contiguous_format), axis)
            self.add(sums.mul_((top - most).exp_()), axis)
            top.copy_(most)

    def largest(self, values: torch.Tensor, axis: int) -> torch.Tensor:
        """Take maxima over an axis over the parts of all ranks, in place."""
        return self._reduced(values, axis, "MAX")

    def _reduced(self, t: torch.Tensor, axis: int, how: str) -> torch.Tensor:
        return reduce_over(t, self.groups, how) if axis == self.axis else t

    def products(self, a: torch.Tensor) -> Products:
        return _SharedProducts(a, self) if self.groups else Products(a)


class _SharedProducts(Products):
    """Products of A with vectors, where each rank has some lines of A."""

    def __init__(self, a: torch.Tensor, ranks: Ranks) -> None:
        super().__init__(a)
        self._ranks = ranks

    def rows(self, v: torch.Tensor, p: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        return plus(self._ranks.add(super().rows(v), -1), p, eps)

    def columns(self, u: torch.Tensor, p: torch.Tensor | None = None, eps: float = 0.0) -> torch.Tensor:
        return plus(self._ranks.add(super().columns(u), -2), p, eps)


ALONE = Ranks()


def ranks_of(groups: Sequence[str], first: str, lines: int) -> Ranks:
    """The processes that share the rows, of matrices whose rows are the lead side or the other one."""
    return Ranks(groups, -2 if first == "rows" else -1, lines) if groups else ALONE
