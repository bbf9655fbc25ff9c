"""The Helion kernel bodies of large matrices, forward: one read of the matrix for an iteration.

A program has all columns of some rows, a few of them at a time, and so the sums of these rows; it adds up
what they are to the columns, a part of each column's sum.  A small launch adds the parts in one order.
Exponents are of two: P_ij = 2^(s x_ij + f_i + g_j), s = log2(e) / temperature.
"""

from __future__ import annotations

import helion.language as hl
import torch

LOWEST = -1e38


def finite(x):
    """x, not below any float: -inf less it is -inf."""
    return x.clamp(min=LOWEST)


def rows_of_first(z, r):
    """(top, what f is above it) of rows z (1, k, m), without column potentials; -inf where r is."""
    top = finite(z.amax(2))
    total = torch.exp2(z - top.unsqueeze(2)).sum(2)
    return top, torch.where(r == -float("inf"), r, r - torch.log2(total))


def sinkhorn_large_first(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """f (B, n) of rows x (B, n, m) without g, and part (B, K, m), logarithms of the columns' sums over blocks
    of `rows` rows.

    A sum is taken relative to its largest term: a column may lose in every row.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), f.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        most = hl.full([i, m], -float("inf"), dtype=torch.float32)
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        for t in hl.tile(block.begin, block.end):
            z = x[i, t, :].to(torch.float32) * s
            top, above = rows_of_first(z, log_r[i, t])
            f[i, t] = above - top
            inside = (t.index < n)[None, :, None]
            w = torch.where(inside, (z - top.unsqueeze(2)) + above.unsqueeze(2), -float("inf"))
            now = torch.maximum(most, w.amax(1))
            shift = finite(now)
            total = total * torch.exp2(most - shift) + torch.exp2(w - shift.unsqueeze(1)).sum(1)
            most = now
        part[i, block.id, :] = finite(most) + torch.log2(total)


def sinkhorn_large_step(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    g: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """f (B, n) from g (B, m), and part (B, K, m), sums of 2^(s x + f + g) over blocks of rows.

    A row has the share that its rounded f gives it, which a gradient will compute again.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), g.stride(), f.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        gs = g[i, :]
        for t in hl.tile(block.begin, block.end):
            z = x[i, t, :].to(torch.float32) * s + gs[:, None, :]
            top = finite(z.amax(2))
            e = torch.exp2(z - top.unsqueeze(2))
            r = log_r[i, t]
            of_row = torch.where(r == -float("inf"), r, (r - torch.log2(e.sum(2))) - top)
            f[i, t] = of_row
            share = torch.where((t.index < n)[None, :], torch.exp2(of_row + top), 0.0)
            total = total + (e * share.unsqueeze(2)).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_columns(
    part: torch.Tensor, g: torch.Tensor, log_c: torch.Tensor, out: torch.Tensor, facts: hl.constexpr
):
    """out (B, m): g + log c - log of the sum of the parts; of_logs: the parts are logarithms, without g."""
    count, m, of_logs = facts
    batch = part.size(0)
    hl.specialize((part.stride(), g.stride(), log_c.stride(), out.stride()))
    for i, j in hl.tile([batch, m]):
        c = log_c[i, j]
        total = hl.zeros([i, j], dtype=torch.float32)
        if of_logs:
            most = hl.full([i, j], -float("inf"), dtype=torch.float32)
            for k in hl.tile(count):
                most = torch.maximum(most, part[i, k, j].amax(1))
            shift = finite(most)
            for k in hl.tile(count):
                total = total + torch.exp2(part[i, k, j] - shift.unsqueeze(1)).sum(1)
            found = (c - torch.log2(total)) - shift
        else:
            for k in hl.tile(count):
                total = total + part[i, k, j].sum(1)
            found = g[i, j] + (c - torch.log2(total))
        out[i, j] = torch.where(c == -float("inf"), c, found)


def sinkhorn_large_write(
    x: torch.Tensor,
    scale: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    p: torch.Tensor,
    facts: hl.constexpr,
):
    """p (B, n, m) = 2^(s x + f + g)."""
    n, m = facts
    batch = x.size(0)
    hl.specialize((x.stride(), f.stride(), g.stride(), p.stride()))
    for i, t, j in hl.tile([batch, n, m], block_size=[1, None, None]):
        z = x[i, t, j].to(torch.float32) * hl.load(scale, [0]) + g[i, j][:, None, :] + f[i, t][:, :, None]
        p[i, t, j] = torch.exp2(z).to(p.dtype)
