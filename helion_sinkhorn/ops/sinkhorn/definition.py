"""A few iterations by their definition, on matrices (..., n, m) that stay in a cache.

Without vectors there are fewer calls, but each half-step rounds every entry again, which adds up over many.
"""

from __future__ import annotations

import torch

MOST_ITERS = 3
"""Of the deepseek form.  Of the log form, whose half-steps take exponentials here, it is one."""


def suits(n_iters: int, eps: float) -> bool:
    """Whether so many iterations take less time by the definition than by products with vectors."""
    return n_iters <= (MOST_ITERS if eps else 1)


def axis_of(step: int) -> int:
    """The axis that half-step `step` after the first rows sums over; columns come first."""
    return (-2, -1)[step % 2]


def shares(log_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Terms of columns, the largest of each 1, and their sums; overwrites the logarithms."""
    terms = log_rows.sub_(log_rows.amax(-2, keepdim=True)).exp_()
    return terms, terms.sum(-2, keepdim=True)


def forward(x: torch.Tensor, n_iters: int, eps: float, out: torch.Tensor) -> None:
    """Write P of logits x, rounded once."""
    if not eps:
        torch.div(*shares(x.log_softmax(-1)), out=out)
        return
    p = x.softmax(-1).add_(eps)
    for k in range(2 * n_iters - 1):
        q = p.sum(axis_of(k), keepdim=True).add_(eps).reciprocal_()
        torch.mul(p, q, out=p if k < 2 * n_iters - 2 else out)


def backward(x: torch.Tensor, dy: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """dX by a projection for each half-step."""
    if not eps:
        z = x.softmax(-1)
        p, sums = shares(x.log_softmax(-1))
        d = p.div_(sums) * dy
        d.addcmul_(p, d.sum(-2, keepdim=True), value=-1.0)
        return d.addcmul_(z, d.sum(-1, keepdim=True), value=-1.0)
    z = x.softmax(-1)
    p, steps = z + eps, []
    for k in range(2 * n_iters - 1):
        q = p.sum(axis_of(k), keepdim=True).add_(eps).reciprocal_()
        p = p * q
        steps.append((axis_of(k), p, q))
    d = dy
    for axis, p, q in reversed(steps):
        d = (d - (d * p).sum(axis, keepdim=True)).mul_(q)
    d = d.mul_(z)
    return d.addcmul_(z, d.sum(-1, keepdim=True), value=-1.0)
