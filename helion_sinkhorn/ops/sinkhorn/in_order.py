"""Sums of a thread's entries of a line, added one after another, and loads whose columns suit them.

`iteration.total` may leave the order of a sum to Triton, which adds one product after another up to 3.7, and
in a tree from 3.8 on.  In order, every product but the first is fused with the sum before it; in a tree,
every second one.  In order the forward of an 8 x 8 matrix in one thread takes 3718 instructions instead of
4495, and of a 4 x 4 matrix 1182 instead of 1320 (sm_90, Triton 3.9, T = 20).  For the compilers such a sum is
many small operations: the gradient of a matrix in one thread has about 80 sums, and would take 16 s to
compile instead of 6.  It takes running sums instead, which need columns numbered as in `read_in_parts`.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.runtime.device_math import joined


def read_in_parts(x, shape, tile, n, m, ordered, lanes_first=False, **how):
    """`loads.read`; if ordered, a matrix lies in one thread, and entry e of part k is column e * parts + k.

    A thread numbers the entries of a vector load last, and before them the parts that are joined.  A blocked
    layout of Triton has the same numbering if the parts of a row are joined first and columns are numbered in
    this way.  No result depends on their order, and `stored_in_parts` restores the order in memory.
    """
    if not ordered:
        return read(x, shape, tile, n, m, lanes_first, **how)
    rows, parts, *_lanes, w = shape
    at = [slice(None)] * 3
    pieces = [
        hl.load(x, [tile, i, k, *at], **how).reshape(tile.block_size, w)
        for k in range(parts)
        for i in range(rows)
    ]
    of_parts, bits = parts.bit_length() - 1, len(pieces).bit_length() - 1
    of_rows = range(2 + of_parts, 2 + bits)
    block = joined(pieces).permute(0, *of_rows, 1, *range(2, 2 + of_parts))
    return block.reshape(tile.block_size, n, m).to(torch.float32)


def stored_in_parts(y, shape, ordered):
    """y (tile, n, m) with the columns of `read_in_parts` in their order in memory."""
    tile, n, m = y.shape
    if not ordered or shape[1] == 1:
        return y
    return y.reshape(tile, n, m // shape[1], shape[1]).permute(0, 1, 3, 2)


def addends(x):
    """The list x[.., 0], x[.., 1], ..; every thread holds the whole last axis."""
    size = x.size(-1)
    if size == 1:
        return [x.squeeze(-1)]
    even, odd = hl.split(x.reshape(*x.shape[:-1], size // 2, 2))
    return [part for pair in zip(addends(even), addends(odd), strict=True) for part in pair]


def held_last(x, axis, lanes):
    """x (tile, n, m) as (.., C, entries) or (.., R, entries), with a thread's entries of a line as last axis.

    Lines run along `axis`; lanes are (R, C, w) of a view for `loads.read`.
    """
    row_lanes, column_lanes, w = lanes
    tile, n, m = x.shape
    if axis == 1:
        if row_lanes == 1:
            return x.permute(0, 2, 1)
        return x.reshape(tile, n // row_lanes, row_lanes, m).permute(0, 2, 3, 1)
    if column_lanes == 1:
        return x
    held = x.reshape(tile, n, m // (column_lanes * w), column_lanes, w).permute(0, 1, 3, 2, 4)
    return held.reshape(tile, n, column_lanes, m // column_lanes)


def sum_of_thread(x, axis, lanes):
    """Each thread's sums along `axis` of x (tile, n, m); see `held_last` for lanes.

    The axis then counts the threads of a line, and is left out if a line has one thread.
    """
    first, *others = addends(held_last(x, axis, lanes))
    for entry in others:
        first = first + entry
    return first


def one_of_data(w):
    """1 for each entry of w, computed from it; NaN where w is NaN or infinite.

    A constant has no layout.  Under Triton 3.9 a loop that begins with a constant gives the vector another
    layout than the matrix has, and each step then computes its sums twice and exchanges them.
    """
    return (w - w) + 1.0
