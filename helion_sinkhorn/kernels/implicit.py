"""The Helion kernel bodies of backward="implicit": stationarity at P, by elimination or conjugate gradients.

The gradient is F(G - 1 beta'), where F(X) = P * (X - mean of each row of X weighted by P) and beta makes
its columns sum to zero: S beta = b with S beta = the column sums of F(1 beta'), b those of F(G)
(docs/math.md).  S is the Laplacian of a graph on the columns, j and k joined by the weight
w_jk = sum_i P_ij P_ik / r_i.  Its elimination adds positive numbers only, so no digit is lost however
close to disconnected the graph is, and its null vector, the constants, is dropped exactly.

Unknowns are the columns, axis 2; the caller passes a transposed view where rows are fewer.
A tile is (tile, n, m) with zeros in its padding.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.kernels.iteration import reciprocal

SMALLEST_NORMAL = 2.0**-126
# (4 units of roundoff)^2 of the first residual: from there on conjugate gradients only amplify rounding
CG_STOP = 2.0**-44


def inverse(x, how):
    """1 / x; 0 where x is 0: of padding, and of a node that nothing is joined to."""
    return torch.where(x >= SMALLEST_NORMAL, reciprocal(x, how), 0.0)


def entries(piece, c):
    """The c columns of (tile, c), each (tile,): `split` keeps them in the registers of their thread."""
    if c == 1:
        return [piece.reshape(piece.size(0))]
    even, odd = hl.split(piece.reshape(piece.size(0), c // 2, 2))
    even, odd = entries(even, c // 2), entries(odd, c // 2)
    return [(even, odd)[k % 2][k // 2] for k in range(c)]


def joined(parts):
    """(tile, 2, .., 2) from 2^d vectors (tile,), the last axis the lowest bit of their number."""
    return parts[0] if len(parts) == 1 else hl.join(joined(parts[0::2]), joined(parts[1::2]))


def total(terms):
    """Their sum, first to last."""
    out = terms[0]
    for term in terms[1:]:
        out = out + term
    return out


def chained(lists):
    """One list of their elements."""
    return [x for part in lists for x in part]


def eliminate(w, b, how):
    """beta of the Laplacian with weights w[j, k], j < k, and right-hand side b; the last unknown is 0."""
    m = len(b)
    w, b = dict(w), list(b)
    scale = []
    for p in range(m - 1):
        scale.append(inverse(total([w[p, k] for k in range(p + 1, m)]), how))
        for j in range(p + 1, m):
            t = w[p, j] * scale[p]
            b[j] = b[j] + t * b[p]
            for k in range(j + 1, m):
                w[j, k] = w[j, k] + t * w[p, k]
    beta = [torch.zeros_like(b[0])] * m
    for p in range(m - 2, -1, -1):
        beta[p] = scale[p] * total([b[p], *(w[p, k] * beta[k] for k in range(p + 1, m))])
    return beta


def flow_of_entries(p, x, inv):
    """One row of F(X), its p and x lists of entries; x is first taken relative to that of the largest p."""
    largest, at_largest = p[0], x[0]
    for j in range(1, len(p)):
        at_largest = torch.where(p[j] > largest, x[j], at_largest)
        largest = torch.maximum(largest, p[j])
    x = [value - at_largest for value in x]
    mean = total([a * b for a, b in zip(p, x, strict=True)]) * inv
    return [a * (b - mean) for a, b in zip(p, x, strict=True)]


def gradient_of_entries(p, g, n, m, how):
    """dX from the entries of P and G, row by row, all in one thread."""
    p = [p[i * m : (i + 1) * m] for i in range(n)]
    g = [g[i * m : (i + 1) * m] for i in range(n)]
    inv = [inverse(total(row), how) for row in p]
    columns = zip(*(flow_of_entries(p[i], g[i], inv[i]) for i in range(n)), strict=True)
    b = [total(column) for column in columns]
    scaled = [[x * inv[i] for x in p[i]] for i in range(n)]
    w = {(j, k): total([scaled[i][j] * p[i][k] for i in range(n)]) for j in range(m) for k in range(j + 1, m)}
    beta = eliminate(w, b, how)
    rows = [flow_of_entries(p[i], [x - y for x, y in zip(g[i], beta, strict=True)], inv[i]) for i in range(n)]
    return chained(rows)


def balanced(x, weight, how):
    """x less the multiple of `weight` that makes its sum zero."""
    return x - weight * (x.sum(1) * inverse(weight.sum(1), how)).unsqueeze(1)


def support(sums):
    """1 where a line has entries, 0 in the padding."""
    return torch.where(sums > 0, 1.0, 0.0)


def matvec(p, x):
    """P x, (tile, n)."""
    return (p * x.unsqueeze(1)).sum(2)


def matvec_t(p, y):
    """P' y, (tile, m)."""
    return (p * y.unsqueeze(2)).sum(1)


def relative(p, x, how):
    """x relative to its value at the largest entry of a row of P: means of nearly one-hot rows stay exact."""
    largest = torch.where(p == p.amax(2).unsqueeze(2), 1.0, 0.0)
    return x - ((largest * x).sum(2) * reciprocal(largest.sum(2), how)).unsqueeze(2)


def flow(p, x, inv):
    """F(X): P times what x is above its mean in each row, weighted by P."""
    return p * (x - ((p * x).sum(2) * inv).unsqueeze(2))


def image_of(p, x, inv, ones, corrected, how):
    """S x: the column sums of F, or for the reduced system x - P' P x without its mean."""
    y = matvec(p, x)
    if corrected:
        return (p * (x.unsqueeze(1) - (y * inv).unsqueeze(2))).sum(1)
    return balanced(x - matvec_t(p, y), ones, how)


def gauge_free(a, b, rows, columns, count):
    """(a, b) less its part along (1, -1), which the full system maps to zero."""
    shift = ((a.sum(1) - b.sum(1)) * (1.0 / count)).unsqueeze(1)
    return a - rows * shift, b + columns * shift


def step_length(left, first, curvature, how):
    """left / curvature, 0 once the residual is down to rounding."""
    return torch.where(left > CG_STOP * first, left * inverse(curvature, how), 0.0).unsqueeze(1)


def sinkhorn_implicit_direct(
    p: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    corrected: hl.constexpr,
    how: hl.constexpr,
    packed: hl.constexpr,
):
    """dX by elimination.  p, dy, dx are (B, n, m); packed: p and dy (B, pieces, c), dx (B, n m).

    Packed holds a matrix in one thread and every number in a name of its own.  Otherwise the
    m x m system is a tile: Gauss-Jordan, so that nothing is kept for a back substitution.
    """
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
            b = flow(p32, g32, inv).sum(1)
            w = torch.zeros_like(b.unsqueeze(2) * b.unsqueeze(1))
            for i in range(n):
                line = p[tile, i, :].to(torch.float32)
                scaled = line * inverse(line.sum(1), how).unsqueeze(1) if corrected else line
                w = w + scaled.unsqueeze(2) * line.unsqueeze(1)
            ones = support(p32.sum(1))
            if not corrected:
                b = balanced(b, ones, how)
                mean = (ones - matvec_t(p32, matvec(p32, ones))) * (1.0 / m)
                both = mean.unsqueeze(2) + balanced(mean, ones, how).unsqueeze(1)
                w = w + both * ones.unsqueeze(2) * ones.unsqueeze(1)
            # from 1; an arange would have another extent than w, which Helion pads
            number = hl.cumsum(ones, 1).to(torch.int32)
            scale = torch.zeros_like(b)
            if m > 1:
                for k in range(1, m):
                    pivot = number == k
                    # of row k only the columns not yet eliminated are left
                    row = torch.where(pivot.unsqueeze(2), w, 0.0).sum(1)
                    row = torch.where(number > k, row, 0.0)
                    inv_k = inverse(row.sum(1), how).unsqueeze(1)
                    into = torch.where(pivot.unsqueeze(1), w, 0.0).sum(2) * inv_k
                    into = torch.where(pivot, 0.0, into)
                    b = b + into * torch.where(pivot, b, 0.0).sum(1).unsqueeze(1)
                    w = w + into.unsqueeze(2) * row.unsqueeze(1)
                    scale = torch.where(pivot, inv_k, scale)
            beta = b * scale
            if not corrected:
                beta = balanced(beta, ones, how)
            h = g32 - beta.unsqueeze(1)
            if corrected:
                h = relative(p32, h, how)
            dx[tile, :, :] = flow(p32, h, inv).to(dx.dtype)


def sinkhorn_implicit_cg(
    p: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    steps: hl.constexpr,
    system: hl.constexpr,
    how: hl.constexpr,
):
    """dX by `steps` steps of conjugate gradients; p, dy, dx are (B, n, m).

    "corrected" is scaled by its diagonal, the degrees of the nodes; "reduced" and "full" run on what is
    orthogonal to their gauge.  A matrix whose residual is down to rounding stays as it is.
    """
    batch = p.size(0)
    hl.specialize((p.shape[1:], p.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    for tile in hl.tile(batch):
        p32 = p[tile, :, :].to(torch.float32)
        g32 = dy[tile, :, :].to(torch.float32)
        r = p32.sum(2)
        if system == "full":
            rows, columns = support(r), support(p32.sum(1))
            ra, rb = gauge_free((p32 * g32).sum(2), (p32 * g32).sum(1), rows, columns, n + m)
            a, b = torch.zeros_like(ra), torch.zeros_like(rb)
            da, db = ra + 0.0, rb + 0.0
            left = (ra * ra).sum(1) + (rb * rb).sum(1)
            first = left + 0.0
            for _step in range(steps):
                sa, sb = gauge_free(da + matvec(p32, db), matvec_t(p32, da) + db, rows, columns, n + m)
                alpha = step_length(left, first, (da * sa).sum(1) + (db * sb).sum(1), how)
                a = a + alpha * da
                b = b + alpha * db
                ra = ra - alpha * sa
                rb = rb - alpha * sb
                now = (ra * ra).sum(1) + (rb * rb).sum(1)
                turn = (now * inverse(left, how)).unsqueeze(1)
                da = ra + turn * da
                db = rb + turn * db
                left = now
            dx[tile, :, :] = (p32 * (g32 - a.unsqueeze(2) - b.unsqueeze(1))).to(dx.dtype)
        else:
            corrected = system == "corrected"
            inv = inverse(r, how) if corrected else support(r)
            ones = support(p32.sum(1))
            degree = (p32 * (1.0 - p32 * inv.unsqueeze(2))).sum(1) if corrected else ones
            scale = inverse(degree, how)
            if corrected:
                g32 = relative(p32, g32, how)
            residual = balanced(flow(p32, g32, inv).sum(1), degree, how)
            # not zeros_like: its size keeps Helion 1.5.1 from compiling a rectangular matrix
            x = residual * 0.0
            along = residual * scale
            left = (residual * along).sum(1)
            first = left + 0.0
            for _step in range(steps):
                image = image_of(p32, along, inv, ones, corrected, how)
                alpha = step_length(left, first, (along * image).sum(1), how)
                x = x + alpha * along
                residual = balanced(residual - alpha * image, degree, how)
                scaled = residual * scale
                now = (residual * scaled).sum(1)
                along = scaled + (now * inverse(left, how)).unsqueeze(1) * along
                left = now
            h = g32 - x.unsqueeze(1)
            if corrected:
                h = relative(p32, h, how)
            dx[tile, :, :] = flow(p32, h, inv).to(dx.dtype)
