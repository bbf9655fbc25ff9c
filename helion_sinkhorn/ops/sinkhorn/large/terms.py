"""The terms that all iterations subtract from the gradient, as sinkhorn_large_terms takes them."""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import Calls, State
from helion_sinkhorn.ops.sinkhorn.large.space import TILE
from helion_sinkhorn.ops.sinkhorn.scaling import EXPONENT_BUDGET

MOST_TOGETHER = 4
"""The most iterations of a segment."""


def segment_of(n: int, m: int) -> int:
    """The number of iterations whose potentials differ by no more than the range of a float."""
    return max(1, min(MOST_TOGETHER, int(EXPONENT_BUDGET[torch.float32] // max(1.0, math.log2(n * m)))))


def filled(k: int) -> int:
    """The entries of a vector of k that is filled up to a multiple of TILE."""
    return -(-k // TILE) * TILE


def of_segments(
    calls: Calls, of: State, rows: torch.Tensor, columns: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """(bases, base_f, base_g, left, right) of sinkhorn_large_terms: the terms of iterations in segments.

    The terms of iteration t are P_t diag(columns_t) and diag(rows_t) P'_t, whose factors are relative to the
    last iteration of their segment.  The terms of the deepseek form, u_t columns_t' and -rows_t v_(t-1)', are
    not relative: every segment has base, and the last u and v.
    """
    n_iters, batch, n = of.fs.shape
    m, linear = of.gs.size(-1), of.eps > 0
    length = min(n_iters, MOST_TOGETHER if linear else segment_of(n, m))
    count = -(-n_iters // length)
    base, base_f = (calls.empty(batch, count, filled(n)) for _ in range(2))
    base_g = calls.empty(batch, count, filled(m))
    left, right = (calls.empty(batch, count, 2 * length, filled(k)) for k in (n, m))
    values = n_iters, count, length, linear
    bases, fs, rows, gs, rests, columns = (
        t.flatten(0, 1) for t in (of.bases, of.fs, rows, of.gs, of.rests, columns)
    )
    calls.launch("sinkhorn_large_left", bases, fs, rows, base, base_f, left, values=values)
    calls.launch("sinkhorn_large_right", gs, rests, columns, base_g, right, values=values)
    return base, base_f, base_g, left, right
