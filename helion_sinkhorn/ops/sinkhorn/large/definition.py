"""A few iterations of the deepseek form as they are written, on one matrix (n, m) that stays in a cache.

There a product with a vector takes as long as a division by sums, and more calls.  A half-step rounds every
entry anew: a few of them may, hundreds would add up.
"""

from __future__ import annotations

import torch

LEAST_ENTRIES = 1 << 14
"""Smaller matrices are computed many at a time."""
MOST_ITERS = 20
MOST_STORED = 1 << 20
"""Entries of a matrix times iterations from which on its gradient leaves the cache."""


def suits(x: torch.Tensor, n_iters: int) -> bool:
    """Whether matrices like x (..., n, m) take less time so than by products."""
    entries = x.size(-2) * x.size(-1)
    is_small = entries >= LEAST_ENTRIES and entries * n_iters <= MOST_STORED
    return x.device.type == "cpu" and n_iters <= MOST_ITERS and is_small


def axis_of(step: int) -> int:
    """What half-step `step` after the softmax adds up over: the columns first."""
    return (-2, -1)[step % 2]


def forward(x: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """P."""
    p = x.softmax(-1).add_(eps)
    for k in range(2 * n_iters - 1):
        p.mul_(p.sum(axis_of(k), keepdim=True).add_(eps).reciprocal_())
    return p


def backward(x: torch.Tensor, dy: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """dX, a projection for each half-step."""
    z = x.softmax(-1)
    p, steps = z + eps, []
    for k in range(2 * n_iters - 1):
        q = p.sum(axis_of(k), keepdim=True).add_(eps).reciprocal_()
        p = p * q
        steps.append((axis_of(k), p, q))
    d = dy
    for axis, p, q in reversed(steps):
        d = (d - (d * p).sum(axis, keepdim=True)).mul_(q)
    d = d * z
    return d.addcmul_(z, d.sum(-1, keepdim=True), value=-1.0)
