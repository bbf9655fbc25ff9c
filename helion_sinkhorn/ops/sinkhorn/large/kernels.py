"""The Helion kernel bodies of large matrices, forward: one read of the matrix for an iteration.

A program has all columns of some rows, a few of them at a time, and so the sums of these rows; it adds up
what they are to the columns, a part of each column's sum.  A small launch adds the parts in one order.
P_ij = exp((s x_ij - base_i) + f_i + g_j) with s = 1 / temperature and base_i the largest of a row: what it
leaves of the entries that count is small and exact, and so f is, however large the logits.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import LOG2E, is_padded


def finite(x):
    """x, not below any float: -inf less it is -inf."""
    return x.clamp(min=-1e38)


def exp(x, m=1):
    """e^x by the instruction for powers of two; for rows of m entries it is finite in their padding.

    Helion takes 0 * w for 0 in the padding, whatever w is, and leaves the mask of a sum out: logits that are
    all below -89 would make w infinite.
    """
    x = x * LOG2E
    return torch.exp2(x.clamp(max=126.0) if is_padded(m) else x)


def log(x):
    """The natural logarithm by the instruction for that of two."""
    return torch.log2(x) * 0.6931471805599453


def above_base(x, scale, base):
    """s x - base, -inf where x is, for rows (1, k, m)."""
    return x.to(torch.float32) * scale - base.unsqueeze(2)


def divided(r, total):
    """log(r / total), -inf where r is nothing."""
    return torch.where(r == -float("inf"), r, r - log(total))


def sinkhorn_large_first(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """base and f (B, n) of rows x (B, n, m) without g, and part (B, K, m), logarithms of the columns' sums
    over blocks of `rows` rows.

    A sum is taken relative to its largest term: a column may lose in every row.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), base.stride(), f.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        most = hl.full([i, m], -float("inf"), dtype=torch.float32)
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        for t in hl.tile(block.begin, block.end):
            z = x[i, t, :].to(torch.float32) * s
            top = finite(z.amax(2))
            base[i, t] = top
            z = z - top.unsqueeze(2)
            of_row = divided(log_r[i, t], exp(z).sum(2))
            f[i, t] = of_row
            inside = (t.index < n)[None, :, None]
            w = torch.where(inside, z + of_row.unsqueeze(2), -float("inf"))
            now = torch.maximum(most, w.amax(1))
            shift = finite(now)
            total = total * exp(most - shift) + exp(w - shift.unsqueeze(1)).sum(1)
            most = now
        part[i, block.id, :] = finite(most) + log(total)


def sinkhorn_large_step(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    g: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """f (B, n) from g (B, m), and part (B, K, m), the columns' sums of P' over blocks of rows.

    A row has the share that its rounded f gives it, which a gradient will compute again.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), base.stride(), g.stride(), f.stride()))
    hl.specialize(part.stride())
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        gs = g[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], s, base[i, t]) + gs[:, None, :]
            top = finite(z.amax(2))
            e = exp(z - top.unsqueeze(2))
            of_row = divided(log_r[i, t], e.sum(2)) - top
            f[i, t] = of_row
            share = torch.where((t.index < n)[None, :], exp(of_row + top), 0.0)
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
                total = total + exp(part[i, k, j] - shift.unsqueeze(1)).sum(1)
            found = divided(c, total) - shift
        else:
            for k in hl.tile(count):
                total = total + part[i, k, j].sum(1)
            found = g[i, j] + divided(c, total)
        out[i, j] = found


def sinkhorn_large_write(
    x: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    p: torch.Tensor,
    facts: hl.constexpr,
):
    """p (B, n, m) = P of f (B, n) and g (B, m)."""
    n, m = facts
    batch = x.size(0)
    hl.specialize((x.stride(), base.stride(), f.stride(), g.stride(), p.stride()))
    for i, t, j in hl.tile([batch, n, m], block_size=[1, None, None]):
        z = above_base(x[i, t, j], hl.load(scale, [0]), base[i, t])
        p[i, t, j] = exp(z + g[i, j][:, None, :] + f[i, t][:, :, None]).to(p.dtype)
