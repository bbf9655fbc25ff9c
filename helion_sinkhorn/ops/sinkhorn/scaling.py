"""How long the scaling vectors u and v stay inside the range of a float before they must be absorbed.

Between two half-steps a sum lies in [1/k, k] times its normalised value, where k is the larger side of the
matrix (docs/dev/math.md), so after s iterations u_i v_j is at most (n m)^s.  A segment ends before that
reaches the budget.  Entries of A below the smallest normal number count as zero, which then changes a result
by less than 2^(budget - 126) in float32.
"""

from __future__ import annotations

import math

import torch

EXPONENT_BUDGET = {torch.float32: 96, torch.float64: 900}
SHIFT = 32
"""The shifted log form has p and q times 2^SHIFT and A times 4^SHIFT, which changes no P.  Entries of A then
count as zero only below 2^-190 of the largest, so that more iterations need no restart.
"""
LARGEST_EXPONENT = 126
# 1/a and 1/b come from one 1/(ab), which stays normal if both are below 2^60
PAIR_EXPONENT = 60
# The most powers of e by which eps may change q over all steps
MOST_DRIFT = 14
# A smaller eps does not keep u v of the "deepseek" form (u v <= 1 / eps) well inside the range of float32
SMALLEST_EPS = 1e-12


def segment_length(n: int, m: int, dtype: torch.dtype = torch.float32) -> int:
    """Iterations of the log form between two absorptions of u and v into the logits."""
    return max(1, int(EXPONENT_BUDGET[dtype] // max(1.0, math.log2(n * m))))


def shifted_length(n: int, m: int) -> int:
    """The most iterations of the shifted log form in float32, which does not restart.

    p and q, at most 2^SHIFT k^(s + 1) with the larger side k after s iterations, also have to stay finite.
    """
    budget = EXPONENT_BUDGET[torch.float32] + 2 * SHIFT
    finite = (LARGEST_EXPONENT - SHIFT) / max(1.0, math.log2(max(n, m))) - 1
    return int(min(budget / max(1.0, math.log2(n * m)), finite))


def may_overflow(eps: float) -> bool:
    """Whether u v may exceed 2^22: products with an upstream gradient then overflow long before the result.

    eps is 0 in the log form; in the deepseek form u v <= 1 / eps.
    """
    return eps < 2.0**-22


def rescaling(lead: int, trail: int, eps: float, steps: int) -> float:
    """rho of the iteration: the factor for each step that keeps u and v of a rectangular matrix in range.

    Without eps it is lead / trail.  With that factor an eps changes q by up to 1 + eps k in each step, where
    k is the ratio of the sides.  Where all steps together might move q out of range, rho is the growth at the
    fixed point with eps, so that q does not move.
    """
    if drifts(lead, trail, eps, steps):
        return (lead + eps * trail) / (trail + eps * lead)
    return lead / trail


def drifts(n: int, m: int, eps: float, steps: int) -> bool:
    """Whether eps may move q of a rectangular matrix out of a float's range: see `rescaling`."""
    moves = steps * eps
    return n != m and (moves * n >= MOST_DRIFT * m or moves * m >= MOST_DRIFT * n)


def pairs_are_safe(n: int, m: int, steps: int, eps: float) -> bool:
    """Whether two reciprocals of one vector may share a division without overflow."""
    growth = math.log2(max(n, m, 2)) * (steps + 1)
    bound = min(growth, -math.log2(eps)) if eps > 0 else growth
    return bound <= PAIR_EXPONENT


def pivot_is_safe(steps: int, eps: float) -> bool:
    """Whether A may be rescaled to ones in a row and a column.

    Its entries are at least eps, so they differ by at most a factor eps^-2, and u and v grow by as much.  Two
    of these may share a division, so eps^-4 has to stay normal.
    """
    return steps > 0 and eps >= 2.0 ** (-PAIR_EXPONENT / 2)


def lean_is_safe(n: int, m: int, eps: float) -> bool:
    """Whether each u may be computed again without its term in eps^2, which is below float32's roundoff."""
    return (eps * max(n / m, m / n)) ** 2 <= 2.0**-24
