"""Tensors as the kernels of hc_split_sinkhorn read and write them."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.views import spread_over_threads


class At:
    """An address within a tensor, as a kept launch takes it: a view in its place would cost a call 2 us."""

    __slots__ = ("address",)

    def __init__(self, x: torch.Tensor, entries: int) -> None:
        self.address = x.data_ptr() + entries * x.element_size()

    def data_ptr(self) -> int:
        """As that of a tensor."""
        return self.address


def logits_view(x: torch.Tensor, n: int, thread: tuple[int, int], batch: int = 0) -> torch.Tensor:
    """(T, n^2), or (n^2,) for a batch of stride 0, as `sinkhorn.loads.read` takes matrices.

    No load takes two rows, so that all dtypes lie in threads alike: sums are in order there.
    """
    size, step = (x.size(0), x.stride(0)) if x.dim() == 2 else (batch, 0)
    x = x.as_strided((size, n, n), (step, n, 1))
    return spread_over_threads(x, *thread, thread[1]) if any(thread) else x


def written_view(x: torch.Tensor, n: int, flat: bool) -> torch.Tensor:
    """(T, n^2) as the kernels write matrices: rows of n^2, or (T, n, n)."""
    return x if flat else x.as_strided((x.size(0), n, n), (x.stride(0), n, 1))
