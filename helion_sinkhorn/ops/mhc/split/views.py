"""Tensors as the kernels of hc_split_sinkhorn read and write them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.sinkhorn.views import spread_over_threads
from helion_sinkhorn.runtime.wanted import Some


class At:
    """An address within a tensor, for a kept launch; making a view instead would cost a call 2 us."""

    __slots__ = ("address",)

    def __init__(self, x: torch.Tensor, entries: int) -> None:
        self.address = x.data_ptr() + entries * x.element_size()

    def data_ptr(self) -> int:
        """The address, by the name that it has for a tensor."""
        return self.address


def places_in(x: Some, *places: int) -> tuple[torch.Tensor | At | None, ...]:
    """What begins at each of these entries of x; None if x is None."""
    return tuple([x if x is None or place == 0 else At(x, place) for place in places])


def logits_view(x: torch.Tensor, n: int, thread: tuple[int, int], batch: int = 0) -> torch.Tensor:
    """(T, n^2) as `sinkhorn.loads.read` takes matrices, with a batch of stride 0 for (n^2,).

    No load takes two rows, so that matrices of every dtype lie in threads alike, where sums follow the order
    of entries.
    """
    size, step = (x.size(0), x.stride(0)) if x.dim() == 2 else (batch, 0)
    x = x.as_strided((size, n, n), (step, n, 1))
    return spread_over_threads(x, *thread, thread[1]) if any(thread) else x


def written_view(x: torch.Tensor, n: int, flat: bool) -> torch.Tensor:
    """x (T, n^2) as the kernels write matrices: as it is if `flat`, or as (T, n, n)."""
    return x if flat else x.as_strided((x.size(0), n, n), (x.stride(0), n, 1))


def gradient_views(dmixes: Some, sums: Some, n: int, flat: bool) -> tuple[Some, ...]:
    """What the backward's kernel writes: two views of the gradient of mixes, and three of the sums of tiles.

    The views of the gradient are its gates (T, n + 2, n) and its matrices as in `written_view`; those of the
    sums are of gates (tiles, 2, n), of logits (tiles, n, n) and of scale.
    """
    of_mixes, of_sums = (None,) * 2, (None,) * 3
    if dmixes is not None:
        rows = dmixes.view(-1, n * n + 2 * n)
        of_mixes = rows.view(-1, n + 2, n), written_view(rows[:, 2 * n :], n, flat)
    if sums is not None:
        tiles, width = sums.shape
        of_gates, of_logits = sums.as_strided((tiles, 2, n), (width, n, 1)), sums[:, 2 * n :]
        of_sums = of_gates, of_logits.as_strided((tiles, n, n), (width, n, 1)), sums[:, n * n + 2 * n :]
    return *of_mixes, *of_sums


def rooms(
    x: torch.Tensor, lead: Sequence[int], n: int, dtype: torch.dtype, into: Sequence[Some]
) -> tuple[torch.Tensor, ...]:
    """Memory for (pre, post, comb): the tensors of `into`, and new ones where there are none."""
    return tuple([room(t, x, (*lead, *s), dtype) for t, s in zip(into, ((n,), (n,), (n, n)), strict=True)])
