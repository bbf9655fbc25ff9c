"""Iterations without eps, the log form, in PyTorch, on a matrix (n, m) or on several (B, n, m)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.sinkhorn.eager import LARGEST_START
from helion_sinkhorn.ops.sinkhorn.large.products import less_products, total, written
from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.ops.sinkhorn.scaling import EXPONENT_BUDGET, segment_length
from helion_sinkhorn.runtime.pieces import sum_last

MOST_MASS = 60.0
"""The largest logarithm of a mass with which the sums of a gradient stay in range."""


Marginal = torch.Tensor | float
"""(..., n), or one number for all lines."""


@dataclass(frozen=True)
class Problem:
    """One matrix (n, m) or several (B, n, m): logits divided by the temperature, in the computing dtype.

    Marginals are divided by their sum, the mass, since a plan of mass one stays in range for any mass.
    Without marginals rows have m / n and columns 1, as in iterations without marginals.
    """

    x: torch.Tensor
    r: Marginal
    c: Marginal
    log_mass: torch.Tensor | float
    """(..., 1), or 0."""
    length: int
    """Iterations between two absorptions of u and v into the logits."""
    ranks: Ranks = ALONE


def problem(
    x: torch.Tensor, log_r: torch.Tensor | None, log_c: torch.Tensor | None, ranks: Ranks = ALONE
) -> Problem:
    """The problem of logits and of the logarithms of both marginals, or of none."""
    n, m = ranks.size(x)
    if log_r is None or log_c is None:
        return Problem(x, m / n, 1.0, 0.0, segment_length(n, m, x.dtype), ranks)
    (r, _), (c, log_mass) = (normalised(t.to(x.dtype), ranks, axis) for t, axis in ((log_r, -2), (log_c, -1)))
    return Problem(x, r, c, log_mass, _length(r, c, ranks), ranks)


def normalised(
    logarithms: torch.Tensor, ranks: Ranks = ALONE, axis: int = -1
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights that sum to one, the logarithm of their sum) from logarithms of weights; zeros without mass.

    The weights belong to the lines along this axis of a matrix.
    """
    least = torch.finfo(logarithms.dtype).min
    top = ranks.largest(logarithms.amax(-1, keepdim=True), axis).clamp_(min=least)
    weights = (logarithms - top).exp_()
    # the sum is at least 1, the largest weight, unless there is no mass
    total = ranks.add(sum_last(weights.clone()).unsqueeze(-1), axis).clamp_(min=1.0)
    return weights.div_(total), total.log().add_(top)


def _length(r: torch.Tensor, c: torch.Tensor, ranks: Ranks) -> int:
    """The number of iterations in which no product of u and v leaves the range.

    It is 1 where it depends on several matrices, or where finding it would wait for a device.  Between two
    half-steps the sum of a line, divided by what it should be, lies between the smallest share of the other
    side and 1 / its own share (docs/dev/math.md).
    """
    if r.dim() > 1 or r.device.type != "cpu":
        return 1
    most = (ranks.largest(t.where(t > 0, 1.0).amin().reciprocal(), axis) for t, axis in ((r, -2), (c, -1)))
    bits = sum(math.log2(t) for t in most)
    return max(1, int(EXPONENT_BUDGET[r.dtype] // max(1.0, bits)))


def share(marginal: Marginal, sums: torch.Tensor) -> torch.Tensor:
    """marginal / sums, or 0 where the marginal is 0, since the sum may be 0 too."""
    if isinstance(marginal, float):
        return sums.reciprocal() if marginal == 1.0 else sums.reciprocal().mul_(marginal)
    return (marginal / sums).masked_fill_(marginal == 0, 0.0)


def per(sums: torch.Tensor, marginal: Marginal) -> torch.Tensor:
    """sums / marginal, or 0 where the marginal is 0."""
    if isinstance(marginal, float):
        return sums if marginal == 1.0 else sums / marginal
    return (sums / marginal).masked_fill_(marginal == 0, 0.0)


def exponential(x: torch.Tensor, f: torch.Tensor, g: torch.Tensor | None = None) -> torch.Tensor:
    """exp(x_ij + f_i + g_j)."""
    a = x + f.unsqueeze(-1)
    return (a if g is None else a.add_(g.unsqueeze(-2))).exp_()


def start(x: torch.Tensor, ranks: Ranks) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(f, g, A = exp(x + f + g)) that iterations begin with.

    The largest entry of each column is 1, so that the sums of a column stay in range even if all its entries
    are small beside others in their rows.
    """
    lowest = torch.finfo(x.dtype).min
    f = ranks.largest(x.amax(-1), -1).clamp_(min=lowest).neg_()
    a = x + f.unsqueeze(-1)
    g = ranks.largest(a.amax(-2), -2).clamp_(min=lowest).neg_()
    return f, g, a.add_(g.unsqueeze(-2)).exp_()


def first_v(g: torch.Tensor) -> torch.Tensor:
    """The first v, exp(-g), since the iterations begin without potentials."""
    return g.neg().clamp_(min=-LARGEST_START).exp_()


def absorbed(
    f: torch.Tensor, g: torch.Tensor, u: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(f + log u, g + log v, the v that rounding the latter leaves); u is computed again from v.

    Potentials may be thousands, with rounding errors of 1e-4, which would remain in the sums of columns.
    """
    log_v = v.log()
    total = g + log_v
    # without mass both are -inf
    return f + u.log(), total, ((g - total) + log_v).nan_to_num_(0.0).exp_()


def segments(n_iters: int, length: int) -> list[range]:
    """The iterations between absorptions of u and v into the logits; the first segment may be shorter."""
    head = (n_iters - 1) % length + 1
    return [range(max(0, end - length), end) for end in range(head, n_iters + 1, length)]


def forward(of: Problem, us: torch.Tensor, vs: torch.Tensor, f_out, g_out, n_iters: int, out) -> None:
    """Compute P and its potentials.

    `us` and `vs` receive u_t and v_t of every iteration, relative to the absorbed ones, if they are not
    empty.
    """
    f, g, a = start(of.x, of.ranks)
    u, v = f, first_v(g)
    for segment in segments(n_iters, of.length):
        if segment.start:
            f, g, v = absorbed(f, g, u, v)
            a = exponential(of.x, f, g)
        product = of.ranks.products(a)
        for t in segment:
            u = share(of.r, product.rows(v))
            v = share(of.c, product.columns(u))
            if len(us):
                us[t], vs[t] = u, v
    torch.add(f, u.log(), out=f_out)
    torch.add(g, v.log(), out=g_out)
    if isinstance(of.log_mass, torch.Tensor):
        f_out += of.log_mass
        # by two square roots, since the mass may exceed the range although no entry does
        root = (of.log_mass / 2).exp()
        u, v = u * root, v * root
    written(a, u, v, out)


def backward(
    of: Problem, dy: torch.Tensor, df: torch.Tensor | None, dg: torch.Tensor | None,
    us: torch.Tensor, vs: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of x and of the logarithms of r and c, from those of P and of the last potentials.

    With D the gradient of log P and R, C the sums of its lines, an iteration backwards is
        D <- D - P_t diag(C / c),  R <- R - P_t (C / c);   D <- D - diag(R / r) P'_t,  C <- -P'_t' (R / r)
    with P_t = diag(u_t) A diag(v_t) and P'_t = diag(u_t) A diag(v_(t-1)), so that R and C follow from
    products with A.  D is computed from them once, by a product of low rank for all iterations with the same
    A; then its own sums replace R and C, which have rounding errors.
    """
    r, c = of.r, of.c
    all_segments = segments(len(us), of.length)
    f, g, a = start(of.x, of.ranks)
    v_0 = first_v(g)
    bases = [(f, g, v_0)]
    for segment in all_segments[:-1]:
        f, g, v = absorbed(f, g, us[segment[-1]], vs[segment[-1]])
        bases.append((f, g, v))
    if len(bases) > 1:
        a = exponential(of.x, f, g)
    p = (a * us[-1].unsqueeze(-1)).mul_(vs[-1].unsqueeze(-2))
    d = p * dy
    if isinstance(of.log_mass, torch.Tensor):
        # the factor by which sums of d would exceed the range is applied at the end
        beyond = (of.log_mass - MOST_MASS).clamp_(min=0.0)
        d.mul_((of.log_mass - beyond).exp().unsqueeze(-1))
        df, dg = (None if t is None else t * beyond.neg().exp() for t in (df, dg))

    def sums_of(axis: int, own: torch.Tensor | None) -> torch.Tensor:
        sums = total(d, axis) if own is None else total(d, axis).add_(own)
        return of.ranks.add(sums, axis)

    def take_back(p: torch.Tensor, axis: int, own: torch.Tensor | None, marginal) -> torch.Tensor:
        """Subtract the sums of d along an axis from it, and return them.

        It is done twice, since the first sums are the largest of all, and so are their rounding errors.
        """
        sums = None
        for _ in range(2):
            left = sums_of(axis, own)
            d.addcmul_(p, per(left, marginal).unsqueeze(axis), value=-1.0)
            sums = left if sums is None else sums + left
        return sums

    of_c = columns = take_back(p, -2, dg, c)
    del p
    rows = sums_of(-1, df)
    of_r = torch.zeros_like(rows)
    for k in range(len(all_segments) - 1, -1, -1):
        segment = all_segments[k]
        if k < len(all_segments) - 1:
            a = exponential(of.x, *bases[k][:2])
        product = of.ranks.products(a)
        lefts, rights = [], []
        for t in reversed(segment):
            u = us[t]
            if t < len(us) - 1:
                of_c = of_c + columns
                s = per(columns, c) * vs[t]
                rows = product.rows(s).mul_(u).neg_()
                lefts.append(u)
                rights.append(s)
            if not t:
                break
            of_r += rows
            v = vs[t - 1] if t > segment.start else bases[k][2]
            w = per(rows, r) * u
            columns = product.columns(w).mul_(v).neg_()
            lefts.append(w)
            rights.append(v)
        if lefts:
            less_products(d, a, lefts, rights)
        if k:
            columns = sums_of(-2, dg)
    p = a.mul_(us[0].unsqueeze(-1)).mul_(v_0.unsqueeze(-2))
    of_r = of_r + take_back(p, -1, df, r)
    if isinstance(of.log_mass, torch.Tensor):
        factor = beyond.exp()
        d, of_r, of_c = d.mul_(factor.unsqueeze(-1)), of_r * factor, of_c * factor
    return d, of_r, of_c
