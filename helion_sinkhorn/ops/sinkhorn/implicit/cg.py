"""sinkhorn_implicit_cg: the gradient of a fixed point by conjugate gradients."""

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
    rounded,
    support,
)
from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.runtime.binade import binade

# (4 units of roundoff)^2 times the first residual; below it conjugate gradients only amplify rounding
CG_STOP = 2.0**-44


def block(x, shape, tile, n, m, lanes_first):
    """Matrices (tile, n, m) in float32, from x (B, n, m) or a view that decides which thread holds what."""
    if len(shape) > 2:
        return read(x, shape, tile, n, m, lanes_first)
    return hl.load(x, [tile, slice(None), slice(None)]).to(torch.float32)


def store(x, tile, value):
    """Store matrices (tile, n, m) in x (B, n, m) or (B, n m)."""
    if x.dim() == 3:
        hl.store(x, [tile, slice(None), slice(None)], value.to(x.dtype))
    else:
        hl.store(x, [tile, slice(None)], value.to(x.dtype).reshape(tile.block_size, x.size(1)))


def degrees(p, inv, how):
    """The diagonal of S."""
    return addend(p, 1.0 - addend(p, inv.unsqueeze(2), how), how).sum(1)


def image_of(p, x, inv, ones, corrected, how):
    """S x: the column sums of F, or for the reduced system x - P' P x less its mean."""
    y = matvec(p, x, how)
    if corrected:
        return addend(p, x.unsqueeze(1) - addend(y, inv, how).unsqueeze(2), how).sum(1)
    return balanced(x - matvec_t(p, y, how), ones, how)


def full_image(p, a, b, how):
    """The matrix of the full system times (a, b): row and column sums of P * (a_i + b_j)."""
    of_rows, of_columns = rounded(p, b.unsqueeze(1), how), rounded(p, a.unsqueeze(2), how)
    return a + of_rows.sum(2), of_columns.sum(1) + b


def squares(a, b, how):
    """The sum of the squares of both, for each matrix."""
    return rounded(a, a, how).sum(1) + rounded(b, b, how).sum(1)


def gauge_free(a, b, rows, columns, count, how):
    """(a, b) without its part along (1, -1), which the full system maps to zero."""
    shift = rounded(a.sum(1) - b.sum(1), 1.0 / count, how).unsqueeze(1)
    return a - rows * shift, b + columns * shift


def step_length(left, first, curvature, how):
    """left / curvature, or 0 once only rounding is left of the residual."""
    return torch.where(left > CG_STOP * first, left * inverse(curvature, how), 0.0).unsqueeze(1)


def sinkhorn_implicit_cg(p: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor, facts: hl.constexpr):
    """Write dX by `steps` steps of conjugate gradients; p and dy are as in `block`, dx as in `store`.

    "corrected" is scaled by its diagonal, the degrees of the nodes; "reduced" and "full" run in the space
    orthogonal to their gauge.  A matrix with only rounding left of its residual is not changed further.
    "full" rounds every product before it is added, since with fusion left to the compiler the second of two
    matrices of 16 x 16 in a block had other bits than the first (sm_90, Triton 3.9).
    """
    n, m, steps, system, how, lanes_first = facts
    batch = p.size(0)
    p_shape, dy_shape = hl.specialize((p.shape[1:], dy.shape[1:]))
    hl.specialize((p.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    matrices = p.movedim((-2, -3), (0, 1)) if lanes_first else p
    upstream = dy.movedim((-2, -3), (0, 1)) if lanes_first else dy
    for tile in hl.tile(batch):
        p32 = block(matrices, p_shape, tile, n, m, lanes_first)
        g32 = block(upstream, dy_shape, tile, n, m, lanes_first)
        power, reciprocal_of_power = binade(g32.abs().amax(2).amax(1))
        power, reciprocal_of_power = power[:, None, None], reciprocal_of_power[:, None, None]
        g32 = g32 * reciprocal_of_power
        r = p32.sum(2)
        if system == "full":
            rows, columns = support(r), support(p32.sum(1))
            d = rounded(p32, g32, how)
            ra, rb = gauge_free(d.sum(2), d.sum(1), rows, columns, n + m, how)
            a, b = torch.zeros_like(ra), torch.zeros_like(rb)
            da, db = ra + 0.0, rb + 0.0
            left = squares(ra, rb, how)
            first = left + 0.0
            for _step in range(steps):
                sa, sb = gauge_free(*full_image(p32, da, db, how), rows, columns, n + m, how)
                curvature = rounded(da, sa, how).sum(1) + rounded(db, sb, how).sum(1)
                alpha = step_length(left, first, curvature, how)
                a = a + rounded(alpha, da, how)
                b = b + rounded(alpha, db, how)
                ra = ra - rounded(alpha, sa, how)
                rb = rb - rounded(alpha, sb, how)
                now = squares(ra, rb, how)
                turn = (now * inverse(left, how)).unsqueeze(1)
                da = ra + rounded(turn, da, how)
                db = rb + rounded(turn, db, how)
                left = now
            store(dx, tile, p32 * (g32 - a.unsqueeze(2) - b.unsqueeze(1)) * power)
        else:
            corrected = system == "corrected"
            inv = inverse(r, how) if corrected else support(r)
            ones = support(p32.sum(1))
            degree = degrees(p32, inv, how) if corrected else ones
            scale = inverse(degree, how)
            if corrected:
                g32 = relative(p32, g32, how)
            residual = balanced(flow(p32, g32, inv, how).sum(1), degree, how)
            # not zeros_like, whose size keeps Helion 1.5.1 from compiling rectangular matrices
            x = residual * 0.0
            along = addend(residual, scale, how)
            left = addend(residual, along, how).sum(1)
            first = left + 0.0
            for _step in range(steps):
                image = image_of(p32, along, inv, ones, corrected, how)
                alpha = step_length(left, first, addend(along, image, how).sum(1), how)
                x = x + addend(alpha, along, how)
                residual = balanced(residual - addend(alpha, image, how), degree, how)
                scaled = addend(residual, scale, how)
                now = addend(residual, scaled, how).sum(1)
                along = scaled + addend((now * inverse(left, how)).unsqueeze(1), along, how)
                left = now
            h = g32 - x.unsqueeze(1)
            if corrected:
                h = relative(p32, h, how)
            store(dx, tile, flow(p32, h, inv, how) * power)
