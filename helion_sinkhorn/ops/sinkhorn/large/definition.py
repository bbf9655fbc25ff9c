"""A few iterations of the deepseek form by its definition, on matrices (..., n, m) that stay in a cache.

In a cache a division by sums takes as long as a product with a vector, and fewer calls.  Each half-step
rounds every entry again, which is tolerable for a few half-steps, but adds up over hundreds.
"""

from __future__ import annotations

import torch

MOST_ITERS = 20
MOST_STORED = 1 << 20
"""Entries times iterations from which on the gradient of a matrix does not stay in the cache."""


def suits(x: torch.Tensor, n_iters: int) -> bool:
    """Whether matrices like x (..., n, m) take less time by the definition than by products."""
    is_small = x.size(-2) * x.size(-1) * n_iters <= MOST_STORED
    return x.device.type == "cpu" and n_iters <= MOST_ITERS and is_small


def axis_of(step: int) -> int:
    """The axis that half-step `step` after the softmax sums over; the first one normalises columns."""
    return (-2, -1)[step % 2]


def forward(x: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """P of logits x."""
    p = x.softmax(-1).add_(eps)
    for k in range(2 * n_iters - 1):
        p.mul_(p.sum(axis_of(k), keepdim=True).add_(eps).reciprocal_())
    return p


def backward(x: torch.Tensor, dy: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """dX by a projection for each half-step."""
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
