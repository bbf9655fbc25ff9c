"""The Helion kernel bodies of large matrices, backward: one read of the matrix for an iteration.

Each iteration passes the line sums of the gradient to the iteration before it (docs/dev/math.md); the
gradient itself is computed once, by sinkhorn_large_terms and then sinkhorn_large_gradient.  Programs, parts,
base, rest and s are as in `kernels`.  The term that a column step subtracts, s_j = rest_j times a sum over c,
refers to P without rest.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.large.kernels import above_base, exp


def inverse(r):
    """e^-r, or 0 where r is -inf, the logarithm of no mass."""
    return torch.where(r == -float("inf"), 0.0, exp(-r))


def upstream_part(f, g, rest, dy, linear):
    """P dY divided by what the terms of its segment are relative to; with linear f and g, less eps's part."""
    if linear:
        return f.unsqueeze(2) * g.unsqueeze(1) * dy
    return rest.unsqueeze(1) * dy


def of_segment(z, f, g, linear, m):
    """The matrix that the terms of a segment are relative to."""
    if linear:
        return exp(z, m)
    return exp(z + g.unsqueeze(1) + f.unsqueeze(2), m)


def of_first(z, f, linear, m):
    """P' of the first row step."""
    if linear:
        return exp(z, m) * f.unsqueeze(2)
    return exp(z + f.unsqueeze(2), m)


def within(f, index, n, rows):
    """f of a block of rows, -inf in its padding, so that entries there are 0 however large g is."""
    return torch.where((index < n).unsqueeze(0), f, -float("inf")) if n % rows else f


def sinkhorn_large_sums(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    f: torch.Tensor,
    g: torch.Tensor,
    rest: torch.Tensor,
    s: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """Write part (B, K, m), the column sums of P * (dY - s_j / rest_j) over blocks of rows."""
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), base.stride(), f.stride(), g.stride(), s.stride()))
    hl.specialize((rest.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        factor = hl.load(scale, [0])
        gs = g[i, :]
        weight = rest[i, :]
        left_out = s[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], factor, base[i, t]) + gs[:, None, :] + f[i, t][:, :, None]
            d = exp(z) * (dy[i, t, :].to(torch.float32) * weight[:, None, :] - left_out[:, None, :])
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
    rest: torch.Tensor,
    s: torch.Tensor,
    row: torch.Tensor,
    part: torch.Tensor,
    facts: hl.constexpr,
):
    """Write row (B, n), df + the row sums of P * (dY - s_j / rest_j), divided by r.

    Write part (B, K, m), the column sums of P' row over blocks of rows, without the factor rest.
    """
    n, m, rows = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), dy.stride(), log_r.stride(), df.stride(), f.stride(), g.stride()))
    hl.specialize((base.stride(), before.stride(), rest.stride(), s.stride(), row.stride(), part.stride()))
    for i, block in hl.tile([batch, n], block_size=[1, rows]):
        total = hl.zeros([i, m], dtype=torch.float32)
        factor = hl.load(scale, [0])
        gs = g[i, :]
        earlier = before[i, :]
        weight = rest[i, :]
        left_out = s[i, :]
        for t in hl.tile(block.begin, block.end):
            z = above_base(x[i, t, :], factor, base[i, t])
            of_row = within(f[i, t], t.index, n, rows)
            p = exp(z + gs[:, None, :] + of_row[:, :, None], m)
            d = p * (dy[i, t, :].to(torch.float32) * weight[:, None, :] - left_out[:, None, :])
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
    """An iteration backwards: write row (B, n) = -sum_j P_ij column_j / r, with P of f and g.

    Write part (B, K, m), the column sums of P' row over blocks of rows, with P' of f and `before`.

    P = P' exp(g - before) takes one exponential for each entry; its factor is bounded except in the first
    iteration.
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
    rest: torch.Tensor,
    out: torch.Tensor,
    facts: hl.constexpr,
):
    """Write out (B, m), rest times (the sum of the parts, plus own), divided by c.

    With `earlier` minus rest times the parts of P' replaces that sum.
    """
    count, m, earlier = facts
    batch = part.size(0)
    hl.specialize((part.stride(), own.stride(), log_c.stride(), rest.stride(), out.stride()))
    for i, j in hl.tile([batch, m]):
        total = hl.zeros([i, j], dtype=torch.float32)
        for k in hl.tile(count):
            total = total + part[i, k, j].sum(1)
        left = rest[i, j]
        found = -total * left if earlier else total + own[i, j]
        out[i, j] = found * inverse(log_c[i, j]) * left


def sinkhorn_large_terms(
    x: torch.Tensor,
    dy: torch.Tensor,
    scale: torch.Tensor,
    rest: torch.Tensor,
    bases: torch.Tensor,
    base_f: torch.Tensor,
    base_g: torch.Tensor,
    left: torch.Tensor,
    right: torch.Tensor,
    d: torch.Tensor,
    facts: hl.constexpr,
):
    """Write d (B, n, m): P * dY less the terms of all iterations.

    left (B, S, L, n) and right (B, S, L, m) are terms relative to base_f (B, S, n) above `bases` and to
    base_g (B, S, m); the first terms of a segment are relative to P itself.

    A program has a tile: 64 x 64 reads 128 factors of a term for 4096 products, where two rows of 1024 read
    1026 for 2048, and lines of any length leave little padding.  Vectors are filled with zeros to a multiple
    of TILE entries, but for pieces of rows: a load without a mask takes half the instructions.

    linear: base_f and base_g are u and v of the deepseek form, there is one base, and the terms are not
    relative.
    """
    n, m, segments, terms, linear = facts
    batch = x.size(0)
    hl.specialize((left.size(3), right.size(3), x.stride(), dy.stride(), rest.stride(), bases.stride()))
    hl.specialize((base_f.stride(), base_g.stride(), left.stride(), right.stride(), d.stride()))
    for i, t, j in hl.tile([batch, left.size(3), right.size(3)], block_size=[1, None, None]):
        s = hl.load(scale, [0])
        in_line = j.index < m
        there = ((t.index < n).unsqueeze(1) & in_line.unsqueeze(0)).unsqueeze(0)
        logits = hl.load(x, [i, t, j], extra_mask=there)
        upstream = hl.load(dy, [i, t, j], extra_mask=there).to(torch.float32)
        z = above_base(logits, s, bases[i, 0, t])
        f, g = base_f[i, 0, t], base_g[i, 0, j]
        inside = upstream_part(f, g, hl.load(rest, [i, j], extra_mask=in_line.unsqueeze(0)), upstream, linear)
        # the terms of P itself come first, since near a permutation they leave a far smaller number
        for term in hl.static_range(terms):
            inside = inside - left[i, 0, term, t].unsqueeze(2) * right[i, 0, term, j].unsqueeze(1)
        found = of_segment(z, f, g, linear, 1) * inside
        for k in hl.grid(1, segments):
            total = hl.zeros([i, t, j], dtype=torch.float32)
            for term in hl.static_range(terms):
                total = total + left[i, k, term, t].unsqueeze(2) * right[i, k, term, j].unsqueeze(1)
            now = z if linear else above_base(logits, s, bases[i, k, t])
            found = found - of_segment(now, base_f[i, k, t], base_g[i, k, j], linear, 1) * total
        hl.store(d, [i, t, j], found, extra_mask=there)


def sinkhorn_large_gradient(
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
    """Write dx (B, n, m): d less the share of its own row sums in the first row step, twice.

    The step has first_f above `first`, or u of the deepseek form if it is linear.  row (B, n) receives the
    sums, divided by r.  dx may be d.
    """
    n, m, linear = facts
    batch = x.size(0)
    hl.specialize((x.size(2), x.stride(), d.stride(), log_r.stride(), df.stride()))
    hl.specialize((first.stride(), first_f.stride(), row.stride(), dx.stride()))
    for i, t in hl.tile([batch, n], block_size=[1, None]):
        s = hl.load(scale, [0])
        p = of_first(above_base(x[i, t, :], s, first[i, t]), first_f[i, t], linear, m)
        inv_r, own = inverse(log_r[i, t]), df[i, t]
        left = d[i, t, :]
        taken = (left.sum(2) + own) * inv_r
        left = left - p * taken[:, :, None]
        again = (left.sum(2) + own) * inv_r
        left = left - p * again[:, :, None]
        row[i, t] = taken + again
        dx[i, t, :] = (left * s).to(dx.dtype)
