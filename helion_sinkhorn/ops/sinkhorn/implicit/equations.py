"""Kernel helpers of the equations of a fixed point: products with P, and the flow of a solution."""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.device_math import reciprocal

SMALLEST_NORMAL = 2.0**-126


def inverse(x, how):
    """1 / x; 0 where x is 0: of padding, and of a node that nothing is joined to."""
    return torch.where(x >= SMALLEST_NORMAL, reciprocal(x, how), 0.0)


def balanced(x, weight, how):
    """x less the multiple of `weight` that makes its sum zero."""
    return x - weight * (x.sum(1) * inverse(weight.sum(1), how)).unsqueeze(1)


def support(sums):
    """1 where a line has entries, 0 in the padding."""
    return torch.where(sums > 0, 1.0, 0.0)


def matvec(p, x):
    """P x, (tile, n)."""
    return (p * x.unsqueeze(1)).sum(2)


def matvec_t(p, y):
    """P' y, (tile, m)."""
    return (p * y.unsqueeze(2)).sum(1)


def relative(p, x, how):
    """x relative to its value at the largest entry of a row of P: means of nearly one-hot rows stay exact."""
    largest = torch.where(p == p.amax(2).unsqueeze(2), 1.0, 0.0)
    return x - ((largest * x).sum(2) * reciprocal(largest.sum(2), how)).unsqueeze(2)


def flow(p, x, inv):
    """F(X): P times what x is above its mean in each row, weighted by P."""
    return p * (x - ((p * x).sum(2) * inv).unsqueeze(2))
