"""The Helion kernel bodies of large matrices, forward: one read of the matrix for an iteration.

A program takes all columns of some rows, a few rows at a time, and so has the sums of these rows; it adds
them up along the columns to a part of each column sum.  A small launch adds the parts in a fixed order.  P_ij
= exp((s x_ij - base_i) + g_j + f_i) rest_j with s = 1 / temperature.  base_i is a whole number: the largest s
x_ij of a row, less what f has grown by since.  So f is small, and the entries that count have small and exact
exponents.  g may be thousands, and rest is the factor that its rounding leaves (docs/dev/math.md).
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import LOG2E, is_padded


def finite(x):
    """x, at least the smallest finite float, so that -inf less it is -inf."""
    return x.clamp(min=-1e38)


def exp(x, m=1):
    """e^x by the instruction for powers of two; in the padding of rows of m entries it is finite.

    Helion assumes that 0 * w is 0 in the padding for any w, and leaves out the mask of a sum, but logits that
    are all below -89 would make w infinite.
    """
    x = x * LOG2E
    return torch.exp2(x.clamp(max=126.0) if is_padded(m) else x)


def log(x):
    """The natural logarithm by the instruction for the binary one."""
    return torch.log2(x) * 0.6931471805599453


def above_base(x, scale, base):
    """s x - base for rows (1, k, m); -inf where x is -inf."""
    return x.to(torch.float32) * scale - base.unsqueeze(2)


def divided(r, total):
    """log(r / total), or -inf where r is 0."""
    return torch.where(r == -float("inf"), r, r - log(total))


def whole(x):
    """The nearest whole number by additions, which keep subnormals; above 2^22 a number near it."""
    return (x + 12582912.0) - 12582912.0


def moved(base, f):
    """base less the whole part of f, which leaves f near zero; without mass f is -inf, and base is unchanged.

    With whole numbers as base, s x - base has small rounding errors, the same in each iteration.
    """
    return base - torch.where(f == -float("inf"), 0.0, whole(f))


def rounded(a, b):
    """(a + b, e^x for its rounding error x), or -inf and 1 where the sum is -inf."""
    total = a + b
    left = torch.where(a.abs() >= b.abs(), (a - total) + b, (b - total) + a)
    return total, torch.where(total == -float("inf"), 1.0, exp(left))


def sinkhorn_large_first(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    largest: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """Write base and f (B, n) of rows x (B, n, m) without g, and part (B, K, m) and `largest` (B, K, m).

    part has the column sums over blocks of `rows` rows relative to their largest terms, whose logarithms are
    `largest`, since all entries of a column may be small beside others in their rows.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), base.stride(), f.stride(), part.stride()))
    hl.specialize(largest.stride())
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        most = hl.full([i, m], -float("inf"), dtype=torch.float32)
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        for t in hl.tile(block.begin, block.end):
            logits = x[i, t, :]
            top = whole(finite((logits.to(torch.float32) * s).amax(2)))
            base[i, t] = top
            z = above_base(logits, s, top)
            of_row = divided(log_r[i, t], exp(z).sum(2))
            f[i, t] = of_row
            z = torch.where((t.index < n)[None, :, None], z, -float("inf"))
            now = torch.maximum(most, (z + of_row.unsqueeze(2)).amax(1))
            shift = finite(now)
            # z and shift may be thousands but f is not; this order is that of later iterations, with g
            w = (z - shift.unsqueeze(1)) + of_row.unsqueeze(2)
            total = total * exp(most - shift) + exp(w).sum(1)
            most = now
        largest[i, block.id, :] = finite(most)
        part[i, block.id, :] = total


def sinkhorn_large_step(
    x: torch.Tensor,
    scale: torch.Tensor,
    log_r: torch.Tensor,
    base_before: torch.Tensor,
    f_before: torch.Tensor,
    g: torch.Tensor,
    rest: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """Write base and f (B, n) from those before and g and rest (B, m), and part (B, K, m).

    part has the column sums of P' over blocks of rows, without the factor rest.  They take f as rounded, so
    that the gradient can compute the same numbers again.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), log_r.stride(), base.stride(), g.stride(), f.stride()))
    hl.specialize((base_before.stride(), f_before.stride(), rest.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        s = hl.load(scale, [0])
        gs = g[i, :]
        weight = rest[i, :]
        for t in hl.tile(block.begin, block.end):
            now = moved(base_before[i, t], f_before[i, t])
            base[i, t] = now
            z = above_base(x[i, t, :], s, now) + gs[:, None, :]
            top = finite(z.amax(2))
            e = exp(z - top.unsqueeze(2), m)
            of_row = divided(log_r[i, t], (e * weight[:, None, :]).sum(2)) - top
            f[i, t] = of_row
            share = torch.where((t.index < n)[None, :], exp(of_row + top), 0.0)
            total = total + (e * share.unsqueeze(2)).sum(1)
        part[i, block.id, :] = total


def sinkhorn_large_columns(
    part: torch.Tensor,
    g: torch.Tensor,
    log_c: torch.Tensor,
    out: torch.Tensor,
    rest: torch.Tensor,
    facts: hl.constexpr,
):
    """Write out (B, m) = g + log c - log(sum of the parts), and rest (B, m), the factor its rounding leaves.

    The parts do not have the rest of the g before, and so it is not needed here.
    """
    count, m = facts
    batch = part.size(0)
    hl.specialize((part.stride(), g.stride(), log_c.stride(), out.stride(), rest.stride()))
    for i, j in hl.tile([batch, m]):
        total = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(count):
            total = total + part[i, k, j].sum(1)
        out[i, j], rest[i, j] = rounded(g[i, j], divided(log_c[i, j], total))


def sinkhorn_large_columns_of_logs(
    largest: torch.Tensor,
    part: torch.Tensor,
    log_c: torch.Tensor,
    out: torch.Tensor,
    rest: torch.Tensor,
    facts: hl.constexpr,
):
    """Write out and rest as above without g, from parts relative to terms with logarithms `largest`."""
    count, m = facts
    batch = part.size(0)
    hl.specialize((largest.stride(), part.stride(), log_c.stride(), out.stride(), rest.stride()))
    for i, j in hl.tile([batch, m]):
        total = hl.zeros([i, j], dtype=torch.float32)
        most = hl.full([i, j], -float("inf"), dtype=torch.float32)
        for k in hl.tile(count):
            most = torch.maximum(most, largest[i, k, j].amax(1))
        shift = finite(most)
        for k in hl.tile(count):
            # only entries in the padding are above 0
            above = (largest[i, k, j] - shift.unsqueeze(1)).clamp(max=0.0)
            total = total + (part[i, k, j] * exp(above)).sum(1)
        out[i, j], rest[i, j] = rounded(-shift, divided(log_c[i, j], total))


def sinkhorn_large_write(
    x: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    rest: torch.Tensor,
    p: torch.Tensor,
    facts: hl.constexpr,
):
    """Write p (B, n, m), the P of base and f (B, n), g and rest (B, m)."""
    n, m = facts
    batch = x.size(0)
    hl.specialize((x.stride(), base.stride(), f.stride(), g.stride(), rest.stride(), p.stride()))
    for i, t, j in hl.tile([batch, n, m], block_size=[1, None, None]):
        z = above_base(x[i, t, j], hl.load(scale, [0]), base[i, t])
        z = z + g[i, j][:, None, :] + f[i, t][:, :, None]
        p[i, t, j] = (exp(z) * rest[i, j][:, None, :]).to(p.dtype)
