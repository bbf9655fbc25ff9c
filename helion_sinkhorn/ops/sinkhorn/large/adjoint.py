"""The Helion kernel bodies of large matrices, backward: one read of the matrix for an iteration.

The sums of the gradient's lines pass from an iteration to the one before it (docs/dev/math.md); the gradient
itself is made once, by sinkhorn_large_gradient.  Programs, parts, base and s are those of `kernels`.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.kernels import above_base, exp


def inverse(r):
    """e^-r, 0 where nothing is to be shared out."""
    return torch.where(r == -float("inf"), 0.0, exp(-r))


def upstream_part(z, f, g, dy, linear, m):
    """P dY of rows of m entries, of linear f and g less what eps adds to P."""
    if linear:
        return exp(z, m) * (f.unsqueeze(2) * g.unsqueeze(1) * dy)
    return exp(z + g.unsqueeze(1) + f.unsqueeze(2), m) * dy


def of_segment(z, f, g, linear, m):
    """What the terms of a segment are relative to."""
    if linear:
        return exp(z, m)
    return exp(z + g.unsqueeze(1) + f.unsqueeze(2), m)


def of_first(z, f, linear, m):
    """P' of the first row step."""
    if linear:
        return exp(z, m) * f.unsqueeze(2)
    return exp(z + f.unsqueeze(2), m)


def within(f, index, n, rows):
    """f of a block of rows, -inf in its padding: what is there is nothing, however large g is."""
    return torch.where((index < n).unsqueeze(0), f, -float("inf")) if n % rows else f


def sinkhorn_large_sums(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    s: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """part (B, K, m): the columns' sums of P * (dY - s_j) over blocks of rows."""
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), base.stride(), f.stride(), g.stride(), s.stride()))
    hl.specialize(part.stride())
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        factor = hl.load(scale, [0])
        gs = g[i, :]
        left_out = s[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], factor, base[i, t]) + gs[:, None, :] + f[i, t][:, :, None]
            d = exp(z) * (dy[i, t, :].to(torch.float32) - left_out[:, None, :])
            total = total + torch.where((t.index < n)[None, :, None], d, 0.0).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_turn(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    df: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    before: torch.Tensor,
    s: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """row (B, n): df + the rows' sums of P * (dY - s_j), over r; part (B, K, m): the columns' sums of P'
    row over blocks of rows."""
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), log_r.stride(), df.stride(), f.stride(), g.stride()))
    hl.specialize((base.stride(), before.stride(), s.stride(), row.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        factor = hl.load(scale, [0])
        gs = g[i, :]
        earlier = before[i, :]
        left_out = s[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], factor, base[i, t])
            of_row = within(f[i, t], t.index, n, rows)
            p = exp(z + gs[:, None, :] + of_row[:, :, None], m)
            d = p * (dy[i, t, :].to(torch.float32) - left_out[:, None, :])
            found = (d.sum(2) + df[i, t]) * inverse(log_r[i, t])
            row[i, t] = found
            p_before = exp(z + earlier[:, None, :] + of_row[:, :, None], m)
            total = total + (p_before * found[:, :, None]).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_back(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    before: torch.Tensor,
    column: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """An iteration backwards: row (B, n) = -sum_j P_ij column_j / r, P of f and g, and part (B, K, m), the
    columns' sums of P' row over blocks of rows, P' of f and `before`.

    P = P' exp(g - before), which is bounded but in the first iteration: one exponential for an entry.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), f.stride(), g.stride(), before.stride()))
    hl.specialize((base.stride(), column.stride(), row.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        factor = hl.load(scale, [0])
        earlier = before[i, :]
        moved = torch.where(earlier == -float("inf"), 0.0, exp(g[i, :] - earlier)) * column[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], factor, base[i, t])
            p = exp(z + earlier[:, None, :] + within(f[i, t], t.index, n, rows)[:, :, None], m)
            found = -(p * moved[:, None, :]).sum(2) * inverse(log_r[i, t])
            row[i, t] = found
            total = total + (p * found[:, :, None]).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_gather(
    part: torch.Tensor,
    own: torch.Tensor,
    log_c: torch.Tensor,
    out: torch.Tensor,
    facts: hl.constexpr,
):
    """out (B, m): sign times the sum of the parts, plus own, over c."""
    count, m, sign = facts
    batch = part.size(0)
    hl.specialize((part.stride(), own.stride(), log_c.stride(), out.stride()))
    for i, j in hl.tile([batch, m]):
        total = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(count):
            total = total + part[i, k, j].sum(1)
        out[i, j] = (total * sign + own[i, j]) * inverse(log_c[i, j])


def sinkhorn_large_gradient(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    df: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    first_f: torch.Tensor,
    base_f: torch.Tensor,
    base_g: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    row: torch.Tensor,
    dx: torch.Tensor,
    facts: hl.constexpr,
):
    """dx (B, n, m): P * dY less the terms of all iterations, and less the sums of its rows, twice.

    left (B, S, L, n) and right (B, S, L, m) are terms relative to base_f (B, S, n) and base_g (B, S, m); of
    the first iteration's rows, of first_f, only the sums that are really there are taken back: row (B, n) has
    them, over r.

    linear: f and g are u and v of the deepseek form, first_f is u_0, and the terms have no base.
    """
    n, m, segments, terms, linear = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), log_r.stride(), df.stride(), f.stride(), g.stride()))
    hl.specialize((base.stride(), base_f.stride(), base_g.stride(), left.stride(), right.stride()))
    hl.specialize((first_f.stride(), row.stride(), dx.stride()))
    for i, t in hl.tile([batch, n], block_size=[1, None]):
        s = hl.load(scale, [0])
        z = above_base(x[i, t, :], s, base[i, t])
        d = upstream_part(z, f[i, t], g[i, :], dy[i, t, :].to(torch.float32), linear, m)
        for k in hl.grid(segments):
            total = hl.zeros([i, t, m], dtype=torch.float32)
            for term in hl.static_range(terms):
                total = total + left[i, k, term, t][:, :, None] * right[i, k, term, :][:, None, :]
            d = d - of_segment(z, base_f[i, k, t], base_g[i, k, :], linear, m) * total
        p = of_first(z, first_f[i, t], linear, m)
        inv_r, own = inverse(log_r[i, t]), df[i, t]
        taken = (d.sum(2) + own) * inv_r
        d = d - p * taken[:, :, None]
        again = (d.sum(2) + own) * inv_r
        d = d - p * again[:, :, None]
        row[i, t] = taken + again
        dx[i, t, :] = (d * s).to(dx.dtype)
