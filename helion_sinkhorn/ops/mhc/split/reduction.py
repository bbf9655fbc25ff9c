"""Partial sums of a projection in a Helion kernel: their sums over the splits, and the factor of the norm.

The row of split k and token t is k T + t, or t splits + k with the tokens first.  A view with an axis of
splits before the tokens would have a stride that changes with the number of tokens, and need a program for
each.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.runtime.device_math import reciprocal


def with_splits(sums, first, together, splits, tokens, squares, gates, logits, shape, tile, n):
    """Add `together` splits from `first` on to the sums of squares and of pre, post and comb columns.

    The splits are added one after another.  `sums` is () before the first.  tokens is the number of tokens,
    or None where they come first in memory.
    """
    for k in range(together):
        rows = tile.index * splits + (first + k) if tokens is None else tile.index + (first + k) * tokens
        terms = (
            hl.load(squares, [rows]),
            hl.load(gates, [rows, 0, slice(None)]),
            hl.load(gates, [rows, 1, slice(None)]),
            read(logits, shape, tile, n, n, rows=rows),
        )
        sums = tuple(a + b for a, b in zip(sums, terms, strict=True)) if sums else terms
    return sums


def norm_of(total, size, norm_eps, eps_outside, how):
    """(r, k) of each token from its sum of squares: the factor of its RMSNorm, and that of its gradient.

    docs/mhc.md defines both.  norm_eps is added to the sum and not to the mean, since a product before the
    addition could be fused with it.
    """
    if not eps_outside:
        r = reciprocal(torch.sqrt((total + size * norm_eps) * (1.0 / size)), how)
        return r, r * r * (-1.0 / size)
    root = torch.sqrt(total * (1.0 / size))
    r = reciprocal(root + norm_eps, how)
    return r, torch.where(root > 0, r * reciprocal(root, how) * (-1.0 / size), 0.0)
