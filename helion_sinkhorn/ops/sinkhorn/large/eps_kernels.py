"""The Helion kernel bodies of the deepseek form of large matrices: one read of the matrix for an iteration.

Programs, parts and base are as in `kernels`.  A_ij = exp(x_ij - base_i) + eps / start_i, where start_i is one
over the sum of the exponentials of row i.  This is softmax(X) + eps times a factor for each row, which u
makes up for.  P = u A v, and the iterations are those of docs/dev/math.md with u_0 = start.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.kernels import above_base, exp, finite
from helion_sinkhorn.runtime.device_math import is_padded, reciprocal

SMALLEST = 2.0**-126
"""The smallest normal float32."""


def entries(x, base, start, eps, how, m=1):
    """A of rows (1, k, m)."""
    return exp(above_base(x, 1.0, base), m) + (reciprocal(start, how) * eps).unsqueeze(2)


def positive(v, m):
    """v (1, m), not 0 in the padding, so that its reciprocal is finite there."""
    return v.clamp(min=SMALLEST) if is_padded(m) else v


def sinkhorn_large_eps_first(
    x: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    part: torch.Tensor,
    eps: float,
    facts: hl.constexpr,
):
    """Write base and start (B, n), and part (B, K, m), the column sums of softmax(x) + eps over blocks."""
    n, m, rows, how = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), base.stride(), start.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        for t in hl.tile(block.begin, block.end):
            z = x[i, t, :].to(torch.float32)
            top = finite(z.amax(2))
            base[i, t] = top
            e = exp(z - top.unsqueeze(2))
            of_row = reciprocal(e.sum(2), how)
            start[i, t] = of_row
            p = e * of_row.unsqueeze(2) + eps
            total = total + torch.where((t.index < n)[None, :, None], p, 0.0).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_eps_step(
    x: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    before: torch.Tensor,
    v: torch.Tensor,
    u: torch.Tensor,
    part: torch.Tensor,
    eps: float,
    rho: float,
    facts: hl.constexpr,
):
    """Write u (B, n) = 1 / (rho (A v + eps / before)), and part (B, K, m), column sums of u A over blocks."""
    n, m, rows, how = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), base.stride(), start.stride(), before.stride(), v.stride()))
    hl.specialize((u.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        vs = v[i, :]
        for t in hl.tile(block.begin, block.end):
            a = entries(x[i, t, :], base[i, t], start[i, t], eps, how, m)
            p = ((a * vs[:, None, :]).sum(2) + reciprocal(before[i, t], how) * eps) * rho
            of_row = reciprocal(p, how)
            u[i, t] = of_row
            share = torch.where((t.index < n)[None, :, None], a * of_row.unsqueeze(2), 0.0)
            total = total + share.sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_eps_columns(
    part: torch.Tensor,
    own: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    ratio: float,
    facts: hl.constexpr,
):
    """Write out (B, m) from parts of the column sums: v = 1 / (sum + ratio / own), where own is the v before.

    Backwards out is ratio * own + v^2 sum.
    """
    count, m, backwards, how = facts
    batch = part.size(0)
    hl.specialize((part.stride(), own.stride(), v.stride(), out.stride()))
    for i, j in hl.tile([batch, m]):
        total = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(count):
            total = total + part[i, k, j].sum(1)
        if backwards:
            of_column = v[i, j]
            found = own[i, j] * ratio + of_column * (of_column * total)
        else:
            found = reciprocal(total + reciprocal(own[i, j], how) * ratio, how)
        out[i, j] = found


def sinkhorn_large_eps_write(
    x: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    p: torch.Tensor,
    eps: float,
    facts: hl.constexpr,
):
    """Write p (B, n, m) = u A v."""
    n, m, how = facts
    batch = x.size(0)
    hl.specialize((x.stride(), base.stride(), start.stride(), u.stride(), v.stride(), p.stride()))
    for i, t, j in hl.tile([batch, n, m], block_size=[1, None, None]):
        a = entries(x[i, t, j], base[i, t], start[i, t], eps, how)
        p[i, t, j] = (a * u[i, t][:, :, None] * v[i, j][:, None, :]).to(p.dtype)


def sinkhorn_large_eps_sums(
    x: torch.Tensor,
    dy: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    u: torch.Tensor,
    part: torch.Tensor,
    eps: float,
    facts: hl.constexpr,
):
    """Write part (B, K, m), the column sums of u A dY over blocks of rows."""
    n, m, rows, how = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), base.stride(), start.stride(), u.stride()))
    hl.specialize(part.stride())
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        for t in hl.tile(block.begin, block.end):
            a = entries(x[i, t, :], base[i, t], start[i, t], eps, how, m)
            d = a * u[i, t].unsqueeze(2) * dy[i, t, :].to(torch.float32)
            total = total + torch.where((t.index < n)[None, :, None], d, 0.0).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_eps_turn(
    x: torch.Tensor,
    dy: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    u: torch.Tensor,
    v: torch.Tensor,
    before: torch.Tensor,
    column: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    eps: float,
    rho: float,
    facts: hl.constexpr,
):
    """Write row (B, n) = -rho u times the row sums of P * (dY - s_j), s = column / v, and part (B, K, m).

    part has, for blocks of rows, the column sums of what the column and the row step leave of P * dY, divided
    by before^2.  The columns that the last column step leaves are summed and not computed from eps, since its
    sums are the largest of all.
    """
    n, m, rows, how = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), base.stride(), start.stride(), u.stride()))
    hl.specialize((v.stride(), before.stride(), column.stride(), row.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        vs = positive(v[i, :], m)
        taken = column[i, :] * reciprocal(vs, how)
        ratio = vs * reciprocal(positive(before[i, :], m), how)
        for t in hl.tile(block.begin, block.end):
            of_row = u[i, t]
            a = entries(x[i, t, :], base[i, t], start[i, t], eps, how, m)
            d = (dy[i, t, :].to(torch.float32) - taken[:, None, :]) * of_row.unsqueeze(2)
            found = (a * vs[:, None, :] * d).sum(2) * of_row * -rho
            row[i, t] = found
            left = a * (d * ratio[:, None, :] + found.unsqueeze(2))
            total = total + torch.where((t.index < n)[None, :, None], left, 0.0).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_eps_back(
    x: torch.Tensor,
    base: torch.Tensor,
    start: torch.Tensor,
    u: torch.Tensor,
    column: torch.Tensor,
    later: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    eps: float,
    rho: float,
    facts: hl.constexpr,
):
    """An iteration backwards: write row (B, n) = rho (eps later + u^2 A column), and part (B, K, m).

    part has the column sums of A row over blocks of rows.
    """
    n, m, rows, how = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), base.stride(), start.stride(), u.stride(), column.stride()))
    hl.specialize((later.stride(), row.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        taken = column[i, :]
        for t in hl.tile(block.begin, block.end):
            of_row = u[i, t]
            a = entries(x[i, t, :], base[i, t], start[i, t], eps, how, m)
            found = (later[i, t] * eps + of_row * (of_row * (a * taken[:, None, :]).sum(2))) * rho
            row[i, t] = found
            left = torch.where((t.index < n)[None, :, None], a * found.unsqueeze(2), 0.0)
            total = total + left.sum(1)
        part[i, block.id, :] = total
