"""The Helion kernel bodies of matrices whose lines are too long for a program: two reads for an iteration.

Each read is a product with a vector of one side.  A program of wide_rows has some rows and goes through all
columns, one of wide_columns has some columns and goes through all rows, so that sums are complete and in a
fixed order.  base is as in `kernels`.  A_ij is exp(s x_ij - base_i + g_j + f_i); in the deepseek form, which
is linear, it is exp(x_ij - base_i) + f_i, where f_i is eps / start_i of `eps_kernels`.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.adjoint import inverse, of_first
from helion_sinkhorn.ops.sinkhorn.large.kernels import above_base, exp, finite, whole


def known(z, f, g, linear):
    """The entries of A for z = s x - base."""
    if linear:
        return exp(z) + f.unsqueeze(2)
    return exp(z + g.unsqueeze(1) + f.unsqueeze(2))


def sinkhorn_large_wide_first(
    x: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, sums: torch.Tensor, facts: hl.constexpr
):
    """Write base (B, n), and sums (B, n) of exp(s x - base) over the rows of x (B, n, m)."""
    n, m = facts
    batch = x.size(0)
    hl.specialize((x.stride(), base.stride(), sums.stride()))
    width = hl.register_block_size(m)
    for i, t in hl.tile([batch, n], block_size=[1, None]):
        s = hl.load(scale, [0])
        most = hl.full([i, t, width], -float("inf"), dtype=torch.float32)
        total = hl.zeros([i, t, width], dtype=torch.float32)
        for j in hl.tile(m, block_size=width):
            z = torch.where((j.index < m)[None, None, :], x[i, t, j].to(torch.float32) * s, -float("inf"))
            now = torch.maximum(most, z)
            shift = finite(now)
            total = total * exp(most - shift) + exp(z - shift)
            most = now
        top = whole(finite(most.amax(2)))
        base[i, t] = top
        sums[i, t] = (total * exp(most - top.unsqueeze(2))).sum(2)


def sinkhorn_large_wide_logs(
    x: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    largest: torch.Tensor,
    sums: torch.Tensor,
    facts: hl.constexpr,
):
    """Write sums (B, m) and `largest` (B, m): the column sums of P' of f without g.

    The sums are relative to their largest terms, whose logarithms are `largest`, since all entries of a
    column may be small beside others in their rows.
    """
    n, m = facts
    batch = x.size(0)
    hl.specialize((x.stride(), base.stride(), f.stride(), largest.stride(), sums.stride()))
    height = hl.register_block_size(n)
    for i, j in hl.tile([batch, m], block_size=[1, None]):
        s = hl.load(scale, [0])
        most = hl.full([i, height, j], -float("inf"), dtype=torch.float32)
        total = hl.zeros([i, height, j], dtype=torch.float32)
        for t in hl.tile(n, block_size=height):
            of_row = f[i, t].unsqueeze(2)
            z = above_base(x[i, t, j], s, base[i, t])
            z = torch.where((t.index < n)[None, :, None], z, -float("inf"))
            now = torch.maximum(most, z + of_row)
            shift = finite(now)
            total = total * exp(most - shift) + exp((z - shift) + of_row)
            most = now
        top = finite(most.amax(1))
        largest[i, j] = top
        sums[i, j] = (total * exp(most - top.unsqueeze(1))).sum(1)


def sinkhorn_large_wide_rows(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    vector: torch.Tensor,
    left_out: torch.Tensor,
    sums: torch.Tensor,
    facts: hl.constexpr,
):
    """Write sums (B, n) of A_ij vector_j; with upstream, of A_ij vector_j (dY_ij - left_out_j)."""
    n, m, upstream, linear = facts
    batch = x.size(0)
    hl.specialize((x.stride(), dy.stride(), base.stride(), f.stride(), g.stride(), vector.stride()))
    hl.specialize((left_out.stride(), sums.stride()))
    width = hl.register_block_size(m)
    for i, t in hl.tile([batch, n], block_size=[1, None]):
        s = hl.load(scale, [0])
        total = hl.zeros([i, t, width], dtype=torch.float32)
        for j in hl.tile(m, block_size=width):
            z = above_base(x[i, t, j], s, base[i, t])
            a = known(z, f[i, t], g[i, j], linear)
            d = a * vector[i, j].unsqueeze(1)
            if upstream:
                d = d * (dy[i, t, j].to(torch.float32) - left_out[i, j].unsqueeze(1))
            total = total + torch.where((j.index < m)[None, None, :], d, 0.0)
        sums[i, t] = total.sum(2)


def sinkhorn_large_wide_columns(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    vector: torch.Tensor,
    left_out: torch.Tensor,
    sums: torch.Tensor,
    facts: hl.constexpr,
):
    """Write sums (B, m) of A_ij vector_i; with upstream, of A_ij vector_i (dY_ij - left_out_j)."""
    n, m, upstream, linear = facts
    batch = x.size(0)
    hl.specialize((x.stride(), dy.stride(), base.stride(), f.stride(), g.stride(), vector.stride()))
    hl.specialize((left_out.stride(), sums.stride()))
    height = hl.register_block_size(n)
    for i, j in hl.tile([batch, m], block_size=[1, None]):
        s = hl.load(scale, [0])
        total = hl.zeros([i, height, j], dtype=torch.float32)
        for t in hl.tile(n, block_size=height):
            z = above_base(x[i, t, j], s, base[i, t])
            a = known(z, f[i, t], g[i, j], linear)
            d = a * vector[i, t].unsqueeze(2)
            if upstream:
                d = d * (dy[i, t, j].to(torch.float32) - left_out[i, j].unsqueeze(1))
            total = total + torch.where((t.index < n)[None, :, None], d, 0.0)
        sums[i, j] = total.sum(1)


def sinkhorn_large_wide_gradient(
    x: torch.Tensor,
    d: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    df: torch.Tensor,
    first: torch.Tensor,
    first_f: torch.Tensor,
    row: torch.Tensor,
    dx: torch.Tensor,
    facts: hl.constexpr,
):
    """Write what sinkhorn_large_gradient computes; d, which dx may be, is read three times."""
    n, m, linear = facts
    batch = x.size(0)
    hl.specialize((x.stride(), d.stride(), log_r.stride(), df.stride()))
    hl.specialize((first.stride(), first_f.stride(), row.stride(), dx.stride()))
    width = hl.register_block_size(m)
    for i, t in hl.tile([batch, n], block_size=[1, None]):
        s = hl.load(scale, [0])
        inv_r, own = inverse(log_r[i, t]), df[i, t]
        taken = hl.zeros([i, t], dtype=torch.float32)
        for look in hl.static_range(3):
            found = hl.zeros([i, t, width], dtype=torch.float32)
            for j in hl.tile(m, block_size=width):
                z = above_base(x[i, t, j], s, first[i, t])
                left = d[i, t, j] - of_first(z, first_f[i, t], linear, 1) * taken.unsqueeze(2)
                if look < 2:
                    found = found + torch.where((j.index < m)[None, None, :], left, 0.0)
                else:
                    dx[i, t, j] = (left * s).to(dx.dtype)
            if look < 2:
                taken = taken + (found.sum(2) + own) * inv_r
        row[i, t] = taken
