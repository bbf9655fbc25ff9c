"""The Helion kernel body of backward="implicit" by elimination: the equations of a fixed point at P.

The gradient is F(G - 1 beta'), where F(X) = P * (X - mean of each row of X weighted by P) and beta makes
its columns sum to zero: S beta = b with S beta = the column sums of F(1 beta'), b those of F(G)
(docs/dev/math.md).  S is the Laplacian of a graph on the columns, which joins j and k with the weight
w_jk = sum_i P_ij P_ik / r_i.  Its elimination adds only positive numbers, so that no digit is lost even if
the graph is nearly disconnected, and its null vector, the constants, is dropped exactly.

The unknowns belong to the columns, axis 2; the caller passes a transposed view where rows are fewer.  A tile
is (tile, n, m) with zeros in its padding.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.implicit.equations import (
    addend,
    balanced,
    flow,
    inverse,
    matvec,
    matvec_t,
    relative,
    support,
)
from helion_sinkhorn.runtime.device_math import joined


def entries(piece, c):
    """The c columns of (tile, c), each (tile,); `split` leaves them in the registers of their thread."""
    if c == 1:
        return [piece.reshape(piece.size(0))]
    even, odd = hl.split(piece.reshape(piece.size(0), c // 2, 2))
    even, odd = entries(even, c // 2), entries(odd, c // 2)
    return [(even, odd)[k % 2][k // 2] for k in range(c)]


def total(terms):
    """The sum of the terms, added from first to last."""
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out


def chained(lists):
    """The elements of all lists in one list."""
    return [x for part in lists for x in part]


def eliminate(w, b, how):
    """beta for the Laplacian with weights w[j, k], j < k, and right-hand side b; the last unknown is 0."""
    m = len(b)
    w, b = dict(w), list(b)
    scale = []
    for p in range(m - 1):
        scale.append(inverse(total([w[p, k] for k in range(p + 1, m)]), how))
        for j in range(p + 1, m):
            t = w[p, j] * scale[p]
            b[j] = b[j] + addend(t, b[p], how)
            for k in range(j + 1, m):
                w[j, k] = w[j, k] + addend(t, w[p, k], how)
    beta = [torch.zeros_like(b[0])] * m
    for p in range(m - 2, -1, -1):
        known = [addend(w[p, k], beta[k], how) for k in range(p + 1, m)]
        beta[p] = addend(scale[p], total([b[p], *known]), how)
    return beta


def flow_of_entries(p, x, inv, how):
    """One row of F(X) from lists of its entries p and x; the x of the largest p is subtracted first."""
    largest, at_largest = p[0], x[0]
    for j in range(1, len(p)):
        at_largest = torch.where(p[j] > largest, x[j], at_largest)
        largest = torch.maximum(largest, p[j])
    x = [value - at_largest for value in x]
    mean = addend(total([addend(a, b, how) for a, b in zip(p, x, strict=True)]), inv, how)
    return [addend(a, b - mean, how) for a, b in zip(p, x, strict=True)]


def gradient_of_entries(p, g, n, m, how):
    """dX from the entries of P and G, which are all in one thread, row by row."""
    p = [p[i * m : (i + 1) * m] for i in range(n)]
    g = [g[i * m : (i + 1) * m] for i in range(n)]
    inv = [inverse(total(row), how) for row in p]
    columns = zip(*(flow_of_entries(p[i], g[i], inv[i], how) for i in range(n)), strict=True)
    b = [total(column) for column in columns]
    scaled = [[x * inv[i] for x in p[i]] for i in range(n)]
    w = {
        (j, k): total([addend(scaled[i][j], p[i][k], how) for i in range(n)])
        for j in range(m)
        for k in range(j + 1, m)
    }
    beta = eliminate(w, b, how)
    rows = [
        flow_of_entries(p[i], [x - y for x, y in zip(g[i], beta, strict=True)], inv[i], how) for i in range(n)
    ]
    return chained(rows)


def sinkhorn_implicit_direct(p: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor, facts: hl.constexpr):
    """Write dX by elimination.  p, dy and dx are (B, n, m); packed p and dy are (B, pieces, c), dx (B, n m).

    If packed, a thread holds a whole matrix, with every number in a variable of its own.  Otherwise the m x m
    system is a tile, solved by Gauss-Jordan, which keeps nothing for a back substitution.
    """
    n, m, corrected, how, packed = facts
    batch = p.size(0)
    p_pieces, dy_pieces = hl.specialize((p.size(1), dy.size(1)))
    p_size, dy_size = hl.specialize((p.size(2), dy.size(2)))
    hl.specialize((p.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    for tile in hl.tile(batch):
        if packed:
            ps = [entries(p[tile, i, :].to(torch.float32), p_size) for i in hl.static_range(p_pieces)]
            gs = [entries(dy[tile, i, :].to(torch.float32), dy_size) for i in hl.static_range(dy_pieces)]
            parts = gradient_of_entries(chained(ps), chained(gs), n, m, how)
            dx[tile, :] = joined(parts).reshape(tile.block_size, n * m).to(dx.dtype)
        else:
            p32 = p[tile, :, :].to(torch.float32)
            g32 = dy[tile, :, :].to(torch.float32)
            r = p32.sum(2)
            inv = inverse(r, how) if corrected else support(r)
            if corrected:
                g32 = relative(p32, g32, how)
            b = flow(p32, g32, inv, how).sum(1)
            w = torch.zeros_like(b.unsqueeze(2) * b.unsqueeze(1))
            for i in range(n):
                line = p[tile, i, :].to(torch.float32)
                scaled = line * inverse(line.sum(1), how).unsqueeze(1) if corrected else line
                w = w + addend(scaled.unsqueeze(2), line.unsqueeze(1), how)
            ones = support(p32.sum(1))
            if not corrected:
                b = balanced(b, ones, how)
                mean = addend(ones - matvec_t(p32, matvec(p32, ones, how), how), 1.0 / m, how)
                both = mean.unsqueeze(2) + balanced(mean, ones, how).unsqueeze(1)
                w = w + both * ones.unsqueeze(2) * ones.unsqueeze(1)
            # numbers from 1; an arange would not have the extent of w, which Helion pads
            number = hl.cumsum(ones, 1).to(torch.int32)
            scale = torch.zeros_like(b)
            if m > 1:
                for k in range(1, m):
                    pivot = number == k
                    # only the columns that are not yet eliminated are left of row k
                    row = torch.where(pivot.unsqueeze(2), w, 0.0).sum(1)
                    row = torch.where(number > k, row, 0.0)
                    inv_k = inverse(row.sum(1), how).unsqueeze(1)
                    into = torch.where(pivot.unsqueeze(1), w, 0.0).sum(2) * inv_k
                    into = torch.where(pivot, 0.0, into)
                    b = b + addend(into, torch.where(pivot, b, 0.0).sum(1).unsqueeze(1), how)
                    w = w + addend(into.unsqueeze(2), row.unsqueeze(1), how)
                    scale = torch.where(pivot, inv_k, scale)
            beta = addend(b, scale, how)
            if not corrected:
                beta = balanced(beta, ones, how)
            h = g32 - beta.unsqueeze(1)
            if corrected:
                h = relative(p32, h, how)
            dx[tile, :, :] = flow(p32, h, inv, how).to(dx.dtype)
