"""Iterations with eps in PyTorch, the deepseek form: on a matrix (n, m), or on some (B, n, m)."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.large.products import Products, less_products, total, written
from helion_sinkhorn.ops.sinkhorn.scaling import rescaling


def forward(
    x: torch.Tensor, us: torch.Tensor, vs: torch.Tensor, n_iters: int, eps: float, out: torch.Tensor
) -> None:
    """P.  `us` and `vs` receive u_t and v_t of every iteration, u_0 = 1 among them, or nothing."""
    n, m = x.shape[-2:]
    rho = rescaling(n, m, eps, n_iters - 1)
    a = x.softmax(-1).add_(eps)
    product = Products(a)
    p = torch.ones_like(x[..., 0])
    q = total(a, -2).add_(eps)
    u, v = p, q.reciprocal()
    for t in range(n_iters):
        if t:
            p = product.rows(v, p, eps)
            if rho != 1:
                p.mul_(rho)
            u = p.reciprocal()
            q = product.columns(u, q, eps / rho)
            v = q.reciprocal()
        if len(us):
            us[t], vs[t] = u, v
    written(a, u, v, out)


def backward(
    x: torch.Tensor, dy: torch.Tensor, eps: float, us: torch.Tensor, vs: torch.Tensor
) -> torch.Tensor:
    """dx: as in the log form, with R and C the sums of A * dA, and what eps adds to them."""
    steps = len(us) - 1
    rho = rescaling(*x.shape[-2:], eps, steps)
    z = x.softmax(-1)
    a = z + eps
    product = Products(a)
    da = (dy * us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
    d = a * da
    s = columns = total(d, -2)
    if steps:
        # what the last column step really leaves: its sums are the largest there are
        p = (a * us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
        d.addcmul_(p, s.unsqueeze(-2), value=-1.0)
        rows, columns = total(d, -1), total(d, -2)
    lefts, rights = [], []
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
    lefts.append(torch.ones_like(us[0]))
    rights.append(vs[0] * columns)
    less_products(da, None, lefts, rights)
    dz = da.mul_(z)
    return dz.addcmul_(z, total(dz, -1).unsqueeze(-1), value=-1.0)
