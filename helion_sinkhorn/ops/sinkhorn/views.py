"""Tensors as the kernels of sinkhorn read and write them."""

from __future__ import annotations

import torch

from helion_sinkhorn.configs.store import triton_version
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.views import VECTOR_BYTES, matrices

NEIGHBOURS = 4
"""Entries of a kept vector that a thread reads at once, 16 bytes."""


def thread_of(choice: Choice) -> tuple[int, int]:
    """(rows, columns) of a matrix that a thread holds; (0, 0) where the compiler decides."""
    return dict(choice.variant).get("thread", (0, 0))


def is_ordered(choice: Choice) -> bool:
    """Whether a thread adds up its products one after the other."""
    return dict(choice.variant).get("ordered", False)


def lanes_first(call: SinkhornCall, choice: Choice) -> bool:
    """Whether a kernel moves the axes of threads that share a matrix to the front of a view (`loads`).

    Up to Triton 3.6 neighbouring threads would otherwise load from different matrices or rows.  Matrices
    below 16 x 16 are excluded, since it saved 1 % of 2^20 gradients of 8 x 8, and few matrices took longer.
    So are matrices that more than two warps share: with four warps, 128 forwards of 64 x 64 in the log form
    took 11.2 us with these axes in front, and take 9.3 us without (H200).  AMD is excluded, where it was
    neither run nor emulated.
    """
    shared = any(thread_of(choice)) and thread_of(choice) != (call.n, call.m)
    pays = call.n * call.m >= 256 and dict(choice.config)["num_warps"] <= 2
    return shared and pays and triton_version() < (3, 7) and torch.version.hip is None


def spread_over_threads(x: torch.Tensor, rows: int, columns: int, most: int = VECTOR_BYTES) -> torch.Tensor:
    """A (B, n, m) view as (B, i, k, R, C, w) for `loads.read`: a thread holds `rows` x `columns` of a matrix.

    R and C threads share its rows and columns, and w neighbours take at most 16 and at most `most` bytes.
    Row i R + r and column (k C + c) w + e are entry (i, k, r, c, e), so that neighbouring threads load
    neighbouring entries.
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
    """A (B, n, m) view as (B, n, k, 1, 1, w) for `in_order.read_in_parts`, where a thread holds a matrix.

    A part is 16 bytes of float32 entries, or as many entries of another dtype, so that x and dY have the same
    columns in a part.
    """
    batch, n, m = x.shape
    w = min(VECTOR_BYTES // 4, m)
    return x.as_strided((batch, n, m // w, 1, 1, w), (x.stride(0), m, w, m, w, 1))


def loaded(x: torch.Tensor, choice: Choice) -> torch.Tensor:
    """An argument as `loads.read` takes it, or `in_order.read_in_parts` for a gradient with sums in order.

    With sums in order no load takes two rows, for which 16-bit entries would change threads.
    """
    x, thread = matrices(x), thread_of(choice)
    if not any(thread):
        return x
    if not is_ordered(choice):
        return spread_over_threads(x, *thread)
    return in_parts(x) if choice.kernel == "sinkhorn_backward" else spread_over_threads(x, *thread, thread[1])


def written_view(out: torch.Tensor, call: SinkhornCall, flat: bool) -> torch.Tensor:
    """A contiguous result in the shape in which the kernel writes it."""
    return out.view(-1, call.n * call.m) if flat else out.view(-1, call.n, call.m)


def kept_views(
    scratch: torch.Tensor, axis: int, x: torch.Tensor, m: int, by_lanes: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two views of a scratch (places, steps, k): as the kernel writes vectors, and as it reads them.

    It is written as (places, steps, a, b), with a vector (a, b) at once, and read as (places, steps, K, G, R,
    C, w): w neighbours for each of R x C threads, K G times.  The axis of threads with the same lines has
    stride 0.  So each thread reads the entries of its own rows or columns, and threads exchange nothing.
    Rows are kept in the order of the threads that hold them, columns as in the matrix.

    Where the compiler decides what a thread holds, or one thread has a whole matrix, both views are the
    scratch itself.

    Args:
        axis: 1 for a vector with an entry for each row, 2 for each column.
        x: logits as `loads.read` takes them.
        m: columns of a matrix.
        by_lanes: whether the kernel reads (steps, C, R, places, K, G, w).
    """
    if x.dim() < 6 or x.shape[3:5] == (1, 1):
        return scratch, scratch
    (places, steps, k), (rows, parts, row_lanes, column_lanes, width) = scratch.shape, x.shape[1:]
    outer = steps * k, k
    if axis == 1:
        w = min(rows, NEIGHBOURS)
        written = scratch.as_strided((places, steps, rows, row_lanes), (*outer, 1, rows))
        sizes, strides = (1, rows // w, row_lanes, column_lanes, w), (rows, w, rows, 0, 1)
    else:
        w = min(width, NEIGHBOURS)
        written = scratch.as_strided((places, steps, 1, m), (*outer, m, 1))
        sizes = parts, width // w, row_lanes, column_lanes, w
        strides = column_lanes * width, w, 0, width, 1
    read = scratch.as_strided((places, steps, *sizes), (*outer, *strides))
    # moved here: if the kernel moved the axes, as it does for the logits (`loads.load_lanes`), the strides
    # would not be constants
    return written, read.permute(1, 5, 4, 0, 2, 3, 6) if by_lanes else read
