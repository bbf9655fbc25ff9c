"""The largest errors of hc_pre with a norm: float32 arithmetic on a y rounded to the dtype of the streams.

Errors have two causes with different laws.  The errors of an entry's own operations add up as squares.  The
errors of r, the reciprocal root of a token's mean square, and of the mean of h v are common to the token's
entries, and change all of them together.

Where the exact y is near a tie, float32 sums may round it to the neighbouring number.  That difference passes
through the equations to first order, always to one side.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, chain, half_ulp, tree
from helion_sinkhorn.ops.mhc.pre import reference

RESULTS = ("u", "dx", "dpre", "dweight")
ROOT = 6.0
"""Units of 1 / sqrt: two of an approximate root, which a quotient of two and its own rounding follow."""
HIGHER = 1.0 + 2.0**-6
"""What first order is multiplied by for the orders beyond it: neighbours are up to 2^-7 of y apart."""
Named = dict[str, torch.Tensor]


def by_autograd(x, pre, du, weight, eps: float, dtype: torch.dtype) -> Named:
    """The specification in `dtype`, the gradient of y passing through its rounding as it is.

    Args:
        x: (K, T, n, C), K elements of T tokens; pre (K, T, n), du (K, T, C), weight (K, C), one an element.
    """
    leaves = [t.detach().to(dtype).requires_grad_() for t in (x, pre, weight.unsqueeze(1))]
    y = reference.hc_pre(*leaves[:2])
    stored = y + (y.detach().to(x.dtype).to(dtype) - y.detach())
    alone = torch.ones_like(stored[..., :1])
    u = reference.hc_pre(stored.unsqueeze(-2), alone, y_norm_weight=leaves[2], y_norm_eps=eps)
    results = u.detach(), *torch.autograd.grad(u, leaves, du.to(dtype))
    return dict(zip(RESULTS, results, strict=True))


def exact(x, pre, du, weight, eps: float) -> Named:
    """The results in float64: u (K, T, C), dx, dpre, and dweight (K, 1, C); arguments as of `by_autograd`."""
    return by_autograd(x, pre, du, weight, eps, torch.float64)


def collapse(x, pre) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(y as stored, its deviation if it is float32, the distance to a neighbour that it may round to)."""
    wide, weights = x.detach().double(), pre.detach().double().unsqueeze(-1)
    y = (weights * wide).sum(-2)
    deviation = UNIT * chain(x.size(-2)) * (weights * wide).square().sum(-2).sqrt()
    stored = y.to(x.dtype)
    if x.dtype == torch.float32:
        return stored.double(), deviation, torch.zeros_like(y)
    away = torch.where(y >= stored.double(), torch.inf, -torch.inf).to(x.dtype)
    other, stored = torch.nextafter(stored, away).double(), stored.double()
    apart = (other - stored).abs()
    near = (y - other).abs() - (y - stored).abs() <= 2 * SIGMAS * deviation
    return stored, torch.zeros_like(y), torch.where(near, apart + SIGMAS * deviation, 0.0)


def errors(x, pre, du, weight, eps: float) -> tuple[Named, Named]:
    """(the deviation of each entry before its last rounding, the most that a neighbour of y adds to it)."""
    y, of_y, off = collapse(x, pre)
    x, du, w = x.detach().double(), du.detach().double(), weight.detach().double().unsqueeze(1)
    weights, tokens, c = pre.detach().double().unsqueeze(-1), x.size(1), x.size(-1)

    squares = y.square()
    mean = squares.mean(-1, keepdim=True)
    r = 1 / (mean + eps).sqrt()
    v, h = y * r, w * du
    along = (h * v).mean(-1, keepdim=True)
    dy = r * (h - v * along)

    def sums(*terms: torch.Tensor) -> torch.Tensor:
        """The root of the sum over columns of squares."""
        return torch.stack([t.square().sum(-1, keepdim=True) for t in terms]).sum(0).sqrt()

    # of r and of the mean of h v, relative to r and itself; `own` are errors of v beside r's
    of_mean = (sums(UNIT * tree(c) * squares) + 2 * sums(y * of_y)) / c
    of_r = of_mean * r.square() / 2 + ROOT * UNIT
    own = ((r * of_y).square() + (UNIT * v).square()).sqrt()
    of_along = sums(h * own, UNIT * tree(c) * h * v) / c + of_r * along.abs()
    # three roundings of each term: product, difference, product
    each = (
        (3 * UNIT * r * h).square() + (3 * UNIT * r * v * along).square() + (r * along * own).square()
    ).sqrt()
    common = (of_r * dy).square() + (2 * of_r * r * v * along).square() + (r * v * of_along).square()
    of_dy = (each.square() + common).sqrt().unsqueeze(-2)

    with_x = (x * dy.unsqueeze(-2)).sum(-1, keepdim=True)
    v_with_x = (x * v.unsqueeze(-2)).sum(-1, keepdim=True)
    r_, along_, of_r_, of_along_ = (t.unsqueeze(-2) for t in (r, along, of_r, of_along))
    of_dpre = (
        sums(UNIT * tree(c) * x * dy.unsqueeze(-2), x * each.unsqueeze(-2)).square()
        + (of_r_ * with_x).square()
        + (2 * of_r_ * r_ * along_ * v_with_x).square()
        + (r_ * of_along_ * v_with_x).square()
    )
    of_dweight = (UNIT * tree(tokens) * du * v).square() + (du * own).square() + (du * v * of_r).square()
    deviations = {
        "u": ((w * own).square() + (UNIT * w * v).square() + (of_r * w * v).square()).sqrt(),
        "dx": (weights.square() * of_dy.square() + (UNIT * weights * dy.unsqueeze(-2)).square()).sqrt(),
        "dpre": of_dpre.sqrt().squeeze(-1),
        "dweight": of_dweight.sum(1, keepdim=True).sqrt(),
    }

    off = HIGHER * off
    r_off = r * (v.abs() * off).mean(-1, keepdim=True)
    v_off = r * off + v.abs() * r_off
    along_off = (h.abs() * v_off).mean(-1, keepdim=True)
    dy_off = (dy.abs() * r_off + r * (v_off * along.abs() + v.abs() * along_off)).unsqueeze(-2)
    at_most = {
        "u": w.abs() * v_off,
        "dx": weights.abs() * dy_off,
        "dpre": (x.abs() * dy_off).sum(-1),
        "dweight": (du.abs() * v_off).sum(1, keepdim=True),
    }
    return deviations, at_most


def error_budget(x, pre, du, weight, eps: float) -> Named:
    """The largest error that an implementation may have on these inputs, entry by entry, for each result.

    Arguments are as in `by_autograd`, each in its given dtype; the weight's gradient is float32.
    """
    truth, (sigma, off) = exact(x, pre, du, weight, eps), errors(x, pre, du, weight, eps)
    dtypes = {"u": x.dtype, "dx": x.dtype, "dpre": pre.dtype, "dweight": torch.float32}
    return {name: SIGMAS * sigma[name] + off[name] + half_ulp(t, dtypes[name]) for name, t in truth.items()}
