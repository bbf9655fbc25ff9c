"""The Helion kernel bodies that make what sinkhorn_large_terms subtracts of the vectors of all iterations.

A segment is some iterations, from a later one to an earlier one, whose terms are relative to its first.  The
vectors of all iterations come as rows t B + i, so that code depends on no batch.  In PyTorch these are 36
launches of 2 us each, as long as 12 iterations of 64 matrices of 256 x 256.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.kernels import whole

LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""ln 2 in two parts; whole numbers below 2^15 times the first are exact."""


def grown(x):
    """e^x within 2 units in the last place for |x| up to 88, which a segment does not exceed."""
    k = whole(x * 1.4426950408889634)
    left = ((x - k * LN2_HIGH) - k * LN2_LOW) * 1.4426950408889634
    return torch.exp2(k) * torch.exp2(left)


def vector_of(vectors, t, i, j, batch, there):
    """(1, j): the vector of iteration t and matrix i, 0 outside."""
    return hl.load(vectors, [t * batch + i.index, j], extra_mask=there)


def sinkhorn_large_left(
    bases: torch.Tensor,
    fs: torch.Tensor,
    rows: torch.Tensor,
    base: torch.Tensor,
    base_f: torch.Tensor,
    left: torch.Tensor,
    facts: hl.constexpr,
):
    """Write base and base_f (B, S, n), and left (B, S, 2 L, n), of bases, fs and rows (T B, n).

    base and base_f are of the first iteration of a segment.  Iteration t has two terms, u_t and u_t rows_t,
    with u_t relative to that; rows of iteration 0 count as 0.  All are filled with zeros to a multiple of
    TILE entries.

    linear: u_t is f_t itself, there is one base, base_f is the last f, and the second term is -rows_t.
    """
    n, _m, n_iters, segments, length, linear = facts
    batch = left.size(0)
    hl.specialize((left.size(3), bases.stride(), fs.stride(), rows.stride()))
    hl.specialize((base.stride(), base_f.stride(), left.stride()))
    for i, k, j in hl.tile([batch, segments, left.size(3)], block_size=[1, 1, None]):
        inside = (j.index < n).unsqueeze(0)
        first = n_iters - 1 - k.begin * length
        end = vector_of(fs, n_iters - 1 if linear else first, i, j, batch, inside)
        from_base = vector_of(bases, 0 if linear else first, i, j, batch, inside)
        base_f[i, k, j] = end.unsqueeze(1)
        base[i, k, j] = from_base.unsqueeze(1)
        has_mass = end != -float("inf")
        for term in hl.static_range(length):
            t = first - term
            after = (k.index * length + term).unsqueeze(1)
            there = inside & (after < n_iters)
            u = vector_of(fs, t, i, j, batch, there)
            w = vector_of(rows, t, i, j, batch, inside & (after < n_iters - 1))
            if not linear:
                moved = vector_of(bases, t, i, j, batch, there) - from_base
                # the bases differ by whole numbers, and f by little
                u = torch.where(there & has_mass, grown((u - end) - moved), 0.0)
            left[i, k, 2 * term, j] = u.unsqueeze(1)
            left[i, k, 2 * term + 1, j] = (-w if linear else u * w).unsqueeze(1)


def sinkhorn_large_right(
    gs: torch.Tensor,
    rests: torch.Tensor,
    columns: torch.Tensor,
    base_g: torch.Tensor,
    right: torch.Tensor,
    facts: hl.constexpr,
):
    """Write base_g (B, S, m) and right (B, S, 2 L, m) of gs, rests and columns (T B, m).

    Iteration t has two terms, v_t columns_t and v_(t-1) rest_(t-1), with v relative to base_g, the g of the
    first iteration of its segment; iteration 0 has no second term.

    linear: v_t columns_t is columns_t, v is g itself, and base_g is the last g.
    """
    _n, m, n_iters, segments, length, linear = facts
    batch = right.size(0)
    hl.specialize((right.size(3), gs.stride(), rests.stride(), columns.stride()))
    hl.specialize((base_g.stride(), right.stride()))
    for i, k, j in hl.tile([batch, segments, right.size(3)], block_size=[1, 1, None]):
        inside = (j.index < m).unsqueeze(0)
        first = n_iters - 1 - k.begin * length
        end = vector_of(gs, n_iters - 1 if linear else first, i, j, batch, inside)
        base_g[i, k, j] = end.unsqueeze(1)
        has_mass = end != -float("inf")
        for term in hl.static_range(length):
            t = first - term
            after = (k.index * length + term).unsqueeze(1)
            there, earlier = inside & (after < n_iters), inside & (after < n_iters - 1)
            v = vector_of(columns, t, i, j, batch, there)
            before = vector_of(gs, t - 1, i, j, batch, earlier)
            if not linear:
                now = vector_of(gs, t, i, j, batch, there)
                v = torch.where(there & has_mass, grown(now - end) * v, 0.0)
                rest = vector_of(rests, t - 1, i, j, batch, earlier)
                before = torch.where(earlier & has_mass, grown(before - end) * rest, 0.0)
            right[i, k, 2 * term, j] = v.unsqueeze(1)
            right[i, k, 2 * term + 1, j] = before.unsqueeze(1)
