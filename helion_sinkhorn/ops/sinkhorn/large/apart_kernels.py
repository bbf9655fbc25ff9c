"""The iterations of `kernels` and `adjoint` for rows of 2^k + 1 entries, the last of which is apart.

A program has a power of two of columns, so that 1025, of SuperGlue's 1024 points and dustbin, would be
computed as 2048.  What has last or end in its name is of the last column.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.adjoint import inverse, within
from helion_sinkhorn.ops.sinkhorn.large.kernels import above_base, divided, exp, finite, moved


def change(g, before):
    """e^(g - before), or 0 where `before` is -inf."""
    return torch.where(before == -float("inf"), 0.0, exp(g - before))


def sinkhorn_large_apart_step(
    x: torch.Tensor,
    last: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base_before: torch.Tensor,
    f_before: torch.Tensor,
    g: torch.Tensor,
    g_last: torch.Tensor,
    rest: torch.Tensor,
    rest_last: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    part_last: torch.Tensor,
    facts: hl.constexpr,
):
    """sinkhorn_large_step of x (B, n, m) and last (B, n, 1)."""
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), last.stride(), log_r.stride(), base.stride(), f.stride()))
    hl.specialize((base_before.stride(), f_before.stride(), g.stride(), rest.stride(), part.stride()))
    hl.specialize((g_last.stride(), rest_last.stride(), part_last.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        total_last = hl.zeros([i], dtype=torch.float32)
        s = hl.load(scale, [0])
        gs, g_end = g[i, :], hl.load(g_last, [i, 0])
        weight, weight_end = rest[i, :], hl.load(rest_last, [i, 0])
        for t in hl.tile(block.begin, block.end):
            now = moved(base_before[i, t], f_before[i, t])
            base[i, t] = now
            z = above_base(x[i, t, :], s, now) + gs[:, None, :]
            end = hl.load(last, [i, t, 0]).to(torch.float32) * s - now + g_end[:, None]
            top = finite(torch.maximum(z.amax(2), end))
            e, e_end = exp(z - top.unsqueeze(2)), exp(end - top)
            found = (e * weight[:, None, :]).sum(2) + e_end * weight_end[:, None]
            of_row = divided(log_r[i, t], found) - top
            f[i, t] = of_row
            share = torch.where((t.index < n)[None, :], exp(of_row + top), 0.0)
            total = total + (e * share.unsqueeze(2)).sum(1)
            total_last = total_last + (e_end * share).sum(1)
        part[i, block.id, :] = total
        hl.store(part_last, [i, block.id, 0], total_last)


def sinkhorn_large_apart_back(
    x: torch.Tensor,
    last: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    g_last: torch.Tensor,
    before: torch.Tensor,
    before_last: torch.Tensor,
    column: torch.Tensor,
    column_last: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    part_last: torch.Tensor,
    facts: hl.constexpr,
):
    """sinkhorn_large_back of x (B, n, m) and last (B, n, 1)."""
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), last.stride(), log_r.stride(), base.stride(), f.stride()))
    hl.specialize((g.stride(), before.stride(), column.stride(), row.stride(), part.stride()))
    hl.specialize((g_last.stride(), before_last.stride(), column_last.stride(), part_last.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        total_last = hl.zeros([i], dtype=torch.float32)
        s = hl.load(scale, [0])
        earlier, earlier_end = before[i, :], hl.load(before_last, [i, 0])
        left = change(g[i, :], earlier) * column[i, :]
        left_end = change(hl.load(g_last, [i, 0]), earlier_end) * hl.load(column_last, [i, 0])
        for t in hl.tile(block.begin, block.end):
            of_base, of_row = base[i, t], within(f[i, t], t.index, n, rows)
            p = exp(above_base(x[i, t, :], s, of_base) + earlier[:, None, :] + of_row[:, :, None])
            end = hl.load(last, [i, t, 0]).to(torch.float32) * s - of_base
            p_end = exp(end + earlier_end[:, None] + of_row)
            sums = (p * left[:, None, :]).sum(2) + p_end * left_end[:, None]
            found = -sums * inverse(log_r[i, t])
            row[i, t] = found
            total = total + (p * found[:, :, None]).sum(1)
            total_last = total_last + (p_end * found).sum(1)
        part[i, block.id, :] = total
        hl.store(part_last, [i, block.id, 0], total_last)
