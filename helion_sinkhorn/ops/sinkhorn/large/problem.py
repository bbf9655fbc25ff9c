"""Matrices with marginals as the iterations take them: the lead side as rows, and marginals of mass one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.ops.sinkhorn.scaling import EXPONENT_BUDGET, segment_length
from helion_sinkhorn.runtime.pieces import sum_last

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
