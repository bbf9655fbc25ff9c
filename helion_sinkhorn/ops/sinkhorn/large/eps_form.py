"""Iterations with eps, the deepseek form, in PyTorch, on a matrix (n, m) or on several (B, n, m)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.large.products import less_products, total, written
from helion_sinkhorn.ops.sinkhorn.large.ranks import Ranks
from helion_sinkhorn.ops.sinkhorn.scaling import rescaling

Vectors = list[torch.Tensor]


def softmax(x: torch.Tensor, ranks: Ranks) -> torch.Tensor:
    if ranks.axis != -1:
        return x.softmax(-1)
    z = (x - ranks.largest(x.amax(-1), -1).unsqueeze(-1)).exp_()
    return z.div_(ranks.add(total(z, -1), -1).unsqueeze(-1))


def forward(
    x: torch.Tensor, us: torch.Tensor, vs: torch.Tensor, n_iters: int, eps: float, out: torch.Tensor,
    ranks: Ranks,
) -> None:  # fmt: skip
    """Return P.  `us` and `vs`, unless empty, receive u_t and v_t of every iteration, with u_0 = 1."""

    def keep(t: int, u: torch.Tensor, v: torch.Tensor) -> None:
        if len(us):
            us[t], vs[t] = u, v

    a = softmax(x, ranks).add_(eps)
    q = ranks.add(total(a, -2), -2).add_(eps)
    rho = rescaling(*ranks.size(x), eps, n_iters - 1)
    u, v = iterate(ranks.products(a), torch.ones_like(x[..., 0]), q, n_iters, eps, rho, keep)
    written(a, u, v, out)


def iterate(
    product: Any, p: torch.Tensor, q: torch.Tensor, n_iters: int, eps: float, rho: float,
    keep: Callable[[int, torch.Tensor, torch.Tensor], None],
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The last u and v, from 1 / u_0 and 1 / v_0, by products with A; `keep` gets each t, u and v."""
    u, v = p.reciprocal(), q.reciprocal()
    keep(0, u, v)
    for t in range(1, n_iters):
        p = product.rows(v, p, eps)
        if rho != 1:
            p.mul_(rho)
        u = p.reciprocal()
        q = product.columns(u, q, eps / rho)
        v = q.reciprocal()
        keep(t, u, v)
    return u, v


def take_back(
    product: Any, us: torch.Tensor, vs: torch.Tensor, eps: float, rho: float, s: torch.Tensor,
    rows: torch.Tensor | None, columns: torch.Tensor,
) -> tuple[Vectors, Vectors]:  # fmt: skip
    """The vectors l and r of all half-steps, from the last on: dA is the gradient of P less the sum of l r'.

    s has the column sums of P * dP; rows and columns are the sums of what the last column step leaves of it,
    or None and s if it is the only step.
    """
    lefts, rights = [], []
    steps = len(us) - 1
    for t in range(steps, 0, -1):
        u, v, before = us[t], vs[t], vs[t - 1]
        if t < steps:
            s = columns
            rows.addcmul_(u, product.rows(v * s), value=-1.0)
            columns = (s * v).mul_(eps / rho).div_(before)
        w = (u * rows).mul_(rho)
        rows = (w * eps).div_(us[t - 1])
        columns.addcmul_(before, product.columns(w), value=-1.0)
        lefts += u, w
        rights += v * s, before
    return [*lefts, us[0]], [*rights, vs[0] * columns]


def backward(
    x: torch.Tensor, dy: torch.Tensor, eps: float, us: torch.Tensor, vs: torch.Tensor, ranks: Ranks
) -> torch.Tensor:
    """dx as in the log form, where R and C are the sums of A * dA and the terms that eps adds to them."""
    steps = len(us) - 1
    rho = rescaling(*ranks.size(x), eps, steps)
    z = softmax(x, ranks)
    a = z + eps
    da = (dy * us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
    d = a * da
    s = columns = ranks.add(total(d, -2), -2)
    rows = None
    if steps:
        # what the last column step leaves as computed, since its sums are the largest of all
        p = (a * us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
        d.addcmul_(p, s.unsqueeze(-2), value=-1.0)
        rows, columns = (ranks.add(total(d, axis), axis) for axis in (-1, -2))
    less_products(da, None, *take_back(ranks.products(a), us, vs, eps, rho, s, rows, columns))
    dz = da.mul_(z)
    return dz.addcmul_(z, ranks.add(total(dz, -1), -1).unsqueeze(-1), value=-1.0)
