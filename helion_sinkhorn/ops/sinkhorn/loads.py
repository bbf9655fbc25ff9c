"""Loads of blocks of matrices that fix which thread holds which entries."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import is_padded, joined


def of_fixed_size(x, n, m):
    """x (tile, n, m): Helion 1.5 may fail over an axis it would cut into chunks (docs/dev/helion.md)."""
    return x if is_padded(n) or is_padded(m) else x.view(x.size(0), n, m)


def load_lanes(x, index, lanes_first, **how):
    """x[index] as (tile, R, C, w), where x is a view (.., R, C, w) and index has the tile.

    With lanes_first x is a view (C, R, .., w).  Threads should lie along C first, then along R, then along
    the tile, so that neighbours in a warp load neighbours in memory.  Triton lays threads along the last of
    equal axes first, but up to 3.6 along the first one.  With the tile first, 8 threads load 16 bytes from 8
    matrices: on an H200 loads and stores of 2^18 matrices of 16 x 16 delayed the shuffles, and a forward took
    225 us instead of 188.

    The kernel moves the axes itself, since the strides of a view that was moved before are no constants, and
    host code that names a function of this package needs Helion (`runtime.standalone`).
    """
    rest = [slice(None)] * 3
    if not lanes_first:
        return hl.load(x, [*index, *rest], **how)
    return hl.load(x, [*rest[:2], *index, rest[2]], **how).permute(2, 1, 0, 3)


def read(x, shape, tile, n, m, lanes_first=False, rows=None, **how):
    """Matrices (tile, n, m) in float32 from a view of `views.loaded`; `shape` is its shape after the batch.

    A view (B, n, m) is read by one load, and the compiler decides which thread holds which entries; versions
    of Triton differ there.  A view (B, i, k, R, C, w) is read by a load (tile, R, C, w) for each i and k.
    Such a load has w entries for each thread of a warp, so each thread gets w neighbours under every version,
    and `join` leaves them where they are: a thread holds i rows and k w columns of one matrix, and sums cross
    R threads along columns and C along rows.

    lanes_first: see `load_lanes`.  rows: the places of the tile's matrices in the batch, if they are not the
    tile.
    how: the cache policy of the loads, as hl.load takes it.
    """
    at = tile if rows is None else rows
    if len(shape) == 2:
        return of_fixed_size(hl.load(x, [at, slice(None), slice(None)], **how).to(torch.float32), n, m)
    groups, parts, *lanes, w = shape
    width = [k for k in lanes if k > 1]
    pieces = [
        load_lanes(x, (at, i, k), lanes_first, **how).reshape(tile.block_size, *width, w)
        for i in range(groups)
        for k in range(parts)
    ]
    last = 1 + len(width)
    bits, low = len(pieces).bit_length() - 1, parts.bit_length() - 1
    of_rows = [last + 1 + b for b in range(bits - low)]
    of_parts = [last + 1 + b for b in range(bits - low, bits)]
    row_lanes, column_lanes = ([1] if lanes[0] > 1 else []), ([last - 1] if lanes[1] > 1 else [])
    block = joined(pieces).permute(0, *of_rows, *row_lanes, *of_parts, *column_lanes, last)
    return block.reshape(tile.block_size, n, m).to(torch.float32)
