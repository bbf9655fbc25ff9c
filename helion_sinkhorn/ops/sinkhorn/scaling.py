"""How long the scaling vectors u and v stay inside the range of a float before they must be absorbed.

Between two half-steps a sum lies in [1/k, k] times its predecessor's normalised value, k the
larger side of the matrix (docs/dev/math.md), so after s iterations u_i v_j is at most (n m)^s.
A segment ends before that reaches the budget: entries of A below the smallest normal number,
taken for zero, then change a result by less than 2^(budget - 126) in fp32.
"""

from __future__ import annotations

import math

import torch

EXPONENT_BUDGET = {torch.float32: 96, torch.float64: 900}
# 1/a and 1/b from one 1/(ab): both below 2^60 keeps the product normal
PAIR_EXPONENT = 60
# Powers of e by which eps may move q over all steps
MOST_DRIFT = 14
# Below this eps no longer bounds u v in the "deepseek" form (u v <= 1 / eps) well inside fp32
SMALLEST_EPS = 1e-12


def segment_length(n: int, m: int, dtype: torch.dtype = torch.float32) -> int:
    """Iterations of the log form between two absorptions of u and v into the logits."""
    return max(1, int(EXPONENT_BUDGET[dtype] // max(1.0, math.log2(n * m))))


def may_overflow(eps: float) -> bool:
    """Whether u v may pass 2^22, so that products with an upstream gradient leave a float's range long before
    the result does.  eps is 0 in the log form; in the other one u v <= 1 / eps.
    """
    return eps < 2.0**-22


def rescaling(lead: int, trail: int, eps: float, steps: int) -> float:
    """rho of the iteration: the factor per step that keeps u and v of a rectangular matrix in range.

    It is lead / trail without eps.  With that factor an eps moves q by up to 1 + eps k in each step, k the
    ratio of the sides.  Where all steps together might move it out of range, rho is the growth at the fixed
    point, eps included, with which nothing moves.
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
    """Whether A may be rescaled to ones in a row and a column: entries at least eps, so at most eps^-2 apart.

    u and v grow by as much, and two of them may share a division: eps^-4 stays normal.
    """
    return steps > 0 and eps >= 2.0 ** (-PAIR_EXPONENT / 2)


def lean_is_safe(n: int, m: int, eps: float) -> bool:
    """Whether each u may be computed again without its term in eps^2: it is then below float32's roundoff."""
    return (eps * max(n / m, m / n)) ** 2 <= 2.0**-24
