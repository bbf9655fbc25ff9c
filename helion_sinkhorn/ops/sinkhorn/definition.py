"""A few iterations by their definition, on matrices (..., n, m).

Without vectors there are fewer calls, but each half-step rounds every entry again, which adds up over many.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.pieces import sum_over

MOST_ITERS = 3
"""Iterations of the deepseek form; one of the log form, whose half-steps take exponentials here."""


def suits(n_iters: int, eps: float) -> bool:
    """Whether so many iterations take less time by the definition than by products with vectors."""
    return n_iters <= (MOST_ITERS if eps else 1)


def axis_of(step: int) -> int:
    """The axis that half-step `step` after the first rows sums over; columns come first."""
    return (-2, -1)[step % 2]


def sums(terms: torch.Tensor, axis: int) -> torch.Tensor:
    """The sums over an axis, which is kept; those of columns by halves, as in `line_sums`."""
    if axis == -1:
        return terms.sum(-1, keepdim=True)
    first, second = terms.chunk(2, -2)
    first = first.clone()
    first[..., : second.size(-2), :].add_(second)
    return sum_over(first, -2).unsqueeze(-2)


def shares(log_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Terms of columns, the largest of each 1, and their sums; overwrites the logarithms."""
    top = log_rows.amax(-2, keepdim=True)
    # a column of -inf makes its whole matrix NaN, as further iterations would
    terms = log_rows.sub_(top + 0.0 * top.amin(-1, keepdim=True)).exp_()
    return terms, sums(terms, -2)


def forward(x: torch.Tensor, n_iters: int, eps: float, out: torch.Tensor) -> None:
    """Write P of logits x, rounded once."""
    if not eps:
        torch.div(*shares(x.log_softmax(-1)), out=out)
        return
    p = x.softmax(-1).add_(eps)
    for k in range(2 * n_iters - 1):
        q = sums(p, axis_of(k)).add_(eps).reciprocal_()
        torch.mul(p, q, out=p if k < 2 * n_iters - 2 else out)


def backward(x: torch.Tensor, dy: torch.Tensor, n_iters: int, eps: float) -> torch.Tensor:
    """dX by a projection for each half-step."""
    z = x.softmax(-1)
    if eps:
        p, steps, d = z + eps, [], dy
        for k in range(2 * n_iters - 1):
            q = sums(p, axis_of(k)).add_(eps).reciprocal_()
            p = p * q
            steps.append((axis_of(k), p, q))
        while steps:
            axis, p, q = steps.pop()
            d = (d - sums(d * p, axis)).mul_(q)
        d.mul_(z)
    else:
        p, of_columns = shares(x.log_softmax(-1))
        d = p.div_(of_columns) * dy
        d.addcmul_(p, sums(d, -2), value=-1.0)
    return d.addcmul_(z, sums(d, -1), value=-1.0)
