"""Partial sums of a projection in a Helion kernel: their sums over the splits, and the factor of the norm.

The row of split k and token t is k T + t, or with the tokens first t splits + k: a view with an axis of
splits before the tokens would have a stride that changes with their number, and a program for each.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.loads import of_fixed_size
from helion_sinkhorn.runtime.device_math import joined, reciprocal


def matrices_at(x, shape, rows, tile, n):
    """Matrices (tile, n, n) at these rows, each entry in the thread that `sinkhorn.loads.read` would give
    it; `shape` is that of the view behind its rows."""
    # hl.load: in a helper Helion takes an index for an operation on the host
    if len(shape) == 2:
        return of_fixed_size(hl.load(x, [rows, slice(None), slice(None)]), n, n)
    groups, parts, *lanes, w = shape
    width = [k for k in lanes if k > 1]
    rest = [slice(None)] * 3
    pieces = [
        hl.load(x, [rows, i, k, *rest]).reshape(tile.block_size, *width, w)
        for i in range(groups)
        for k in range(parts)
    ]
    last = 1 + len(width)
    bits, low = len(pieces).bit_length() - 1, parts.bit_length() - 1
    of_rows = [last + 1 + b for b in range(bits - low)]
    of_parts = [last + 1 + b for b in range(bits - low, bits)]
    row_lanes, column_lanes = ([1] if lanes[0] > 1 else []), ([last - 1] if lanes[1] > 1 else [])
    block = joined(pieces).permute(0, *of_rows, *row_lanes, *of_parts, *column_lanes, last)
    return block.reshape(tile.block_size, n, n)


def with_splits(sums, first, together, splits, tokens, squares, gates, logits, shape, tile, n):
    """The sums of squares and of pre, post and comb columns, with those of `together` splits from `first` on
    added one after another; () where none are added yet.  tokens: how many, None where they come first."""
    for k in range(together):
        rows = tile.index * splits + (first + k) if tokens is None else tile.index + (first + k) * tokens
        terms = (
            hl.load(squares, [rows]),
            hl.load(gates, [rows, 0, slice(None)]),
            hl.load(gates, [rows, 1, slice(None)]),
            matrices_at(logits, shape, rows, tile, n),
        )
        sums = tuple(a + b for a, b in zip(sums, terms, strict=True)) if sums else terms
    return sums


def norm_of(total, size, norm_eps, eps_outside, how):
    """(r, k) of each token from its sum of squares: the factor of its RMS norm, and that of its gradient
    (docs/hc_split_sinkhorn.md).

    norm_eps is added to the sum, and not to the mean: a product before the addition could be fused with it.
    """
    if not eps_outside:
        r = reciprocal(torch.sqrt((total + size * norm_eps) * (1.0 / size)), how)
        return r, r * r * (-1.0 / size)
    root = torch.sqrt(total * (1.0 / size))
    r = reciprocal(root + norm_eps, how)
    return r, torch.where(root > 0, r * reciprocal(root, how) * (-1.0 / size), 0.0)
