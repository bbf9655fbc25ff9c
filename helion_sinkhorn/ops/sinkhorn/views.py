"""Tensors as the kernels of sinkhorn read and write them."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.views import VECTOR_BYTES, matrices


def thread_of(choice: Choice) -> tuple[int, int]:
    """(rows, columns) of a matrix that a thread holds; (0, 0) where the compiler decides."""
    return dict(choice.variant).get("thread", (0, 0))


def is_ordered(choice: Choice) -> bool:
    """Whether a thread adds up its products one after the other."""
    return dict(choice.variant).get("ordered", False)


def spread_over_threads(x: torch.Tensor, rows: int, columns: int, most: int = VECTOR_BYTES) -> torch.Tensor:
    """A (B, n, m) view as (B, i, k, R, C, w) for `iteration.read`: a thread holds `rows` x `columns` of a
    matrix.

    R and C threads share its rows and columns, and w neighbours are 16 bytes and `most` at most.  Row i R + r
    and column (k C + c) w + e are entry (i, k, r, c, e), so that threads side by side load what lies so.
    """
    _, n, m = x.shape
    most = min(most, VECTOR_BYTES // x.element_size())
    if (rows, columns) == (n, m):
        w = min(most, n * m)
        return x.as_strided((x.size(0), n * m // w, 1, 1, 1, w), (x.stride(0), w, w, w, w, 1))
    row_lanes, column_lanes, w = n // rows, m // columns, min(most, columns)
    sizes = x.size(0), rows, columns // w, row_lanes, column_lanes, w
    return x.as_strided(sizes, (x.stride(0), row_lanes * m, column_lanes * w, m, w, 1))


def in_parts(x: torch.Tensor) -> torch.Tensor:
    """A (B, n, m) view as (B, n, k, 1, 1, w) for `in_order.read_in_parts`: a thread holds a matrix.

    A part is 16 bytes of float32 entries, or as many of another dtype, so columns of x and dY correspond.
    """
    batch, n, m = x.shape
    w = min(VECTOR_BYTES // 4, m)
    return x.as_strided((batch, n, m // w, 1, 1, w), (x.stride(0), m, w, m, w, 1))


def loaded(x: torch.Tensor, choice: Choice) -> torch.Tensor:
    """An argument as `iteration.read` or, of a gradient in order, `in_order.read_in_parts` takes it.

    Sums in order take no load of two rows: 16-bit entries would change threads for them.
    """
    x, thread = matrices(x), thread_of(choice)
    if not any(thread):
        return x
    if not is_ordered(choice):
        return spread_over_threads(x, *thread)
    return in_parts(x) if choice.kernel == "sinkhorn_backward" else spread_over_threads(x, *thread, thread[1])


def written_view(out: torch.Tensor, call: SinkhornCall, flat: bool) -> torch.Tensor:
    """A contiguous result as the kernel writes it."""
    return out.view(-1, call.n * call.m) if flat else out.view(-1, call.n, call.m)
