"""Kernel helpers of the equations of a fixed point: products with P, and the flow of a solution."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.iteration import product
from helion_sinkhorn.runtime.device_math import reciprocal

SMALLEST_NORMAL = 2.0**-126


def rounded(x, y, how):
    """x y elementwise, rounded before it is added to a sum.  y may be a number."""
    return product(x, y if isinstance(y, torch.Tensor) else torch.full_like(x, y), how)


def addend(x, y, how):
    """x y elementwise, a term of a sum; on AMD it is rounded, so that it is never fused.  y may be a number.

    On gfx950 a thread held four of the 64 matrices of 4 x 4 in a block, and LLVM fused such products in three
    of them and not in the first: a matrix had other bits at place 17 than at place 14.
    """
    return rounded(x, y, how) if how == "gcn" else x * y


def inverse(x, how):
    """1 / x, or 0 where x is 0: in the padding, and for a node without edges."""
    return torch.where(x >= SMALLEST_NORMAL, reciprocal(x, how), 0.0)


def balanced(x, weight, how):
    """x less the multiple of `weight` that makes its sum zero."""
    return x - addend(weight, (x.sum(1) * inverse(weight.sum(1), how)).unsqueeze(1), how)


def support(sums):
    """1 where a line has entries, 0 in the padding."""
    return torch.where(sums > 0, 1.0, 0.0)


def matvec(p, x, how):
    """P x, (tile, n)."""
    return addend(p, x.unsqueeze(1), how).sum(2)


def matvec_t(p, y, how):
    """P' y, (tile, m)."""
    return addend(p, y.unsqueeze(2), how).sum(1)


def relative(p, x, how):
    """x relative to its value at the largest entry of a row of P: means of nearly one-hot rows stay exact."""
    largest = torch.where(p == p.amax(2).unsqueeze(2), 1.0, 0.0)
    return x - addend((largest * x).sum(2), reciprocal(largest.sum(2), how), how).unsqueeze(2)


def flow(p, x, inv, how):
    """F(X): P times the difference of x to its mean in each row, weighted by P."""
    return addend(p, x - addend(addend(p, x, how).sum(2), inv, how).unsqueeze(2), how)
