"""The largest errors of dot compress, derived from the places of its roundings (docs/dev/dot_compress.md).

Each rounding to the dtype of x is assumed to be uniform in its interval and independent of the others.

A sum of n terms in float32 has two kinds of errors.  If it is rounded to nearest n times, its partial sums of
size s sqrt(k) have independent errors, together less than CUT s n.  A matrix unit truncates them instead, all
to one side, toward zero or down, each by CUT / 2 of its size on average.  It does so at most every STEP
terms, so that these errors add up to CUT / (2 STEP) times the sum of s sqrt(k) over k up to n, which is CUT s
n^1.5 / (3 STEP).

Products of float32 use no unit that truncates: kernels request "ieee", fused sums on ordinary units.  The
longest chain rounds n times to nearest, each time by at most UNIT of the partial sum, uniform in that
interval.  With terms in random order and the sum v, the partial sum after k terms has the mean k v / n and
the variance
s^2 k (1 - k / n).  Its square adds up to v^2 n / 3 + s^2 n^2 / 6; products that are not fused add s^2 n.  The
variance is UNIT^2 / 3 of that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.rounding import UNIT, half_ulp
from helion_sinkhorn.ops.dot_compress import reference

CUT = 2.0**-23
"""Relative error of one truncation to float32."""
STEP = 4
"""Fewest terms that a matrix unit adds to its accumulator at a time (arXiv 2511.10909)."""
SIGMAS = 7.0
"""A normal number is further from its mean once in 4e11."""


@dataclass(frozen=True)
class Exact:
    """One result in float64, with the deviation of its earlier roundings, and its own last rounding."""

    value: torch.Tensor
    sigma: torch.Tensor
    half: torch.Tensor
    """Largest error of the last rounding."""
    last: torch.Tensor
    """Deviation of the last rounding."""

    @property
    def budget(self) -> torch.Tensor:
        """Largest error a correct implementation shows."""
        return SIGMAS * self.sigma + self.half

    @property
    def spread(self) -> torch.Tensor:
        """The deviation of its error."""
        return (self.sigma.square() + self.last.square()).sqrt()


def carried(dtype: torch.dtype, parts: int) -> float:
    """The factor by which a second part of a narrow dtype, the rounded rest, reduces the error."""
    return (torch.finfo(dtype).eps / 2) ** (parts - 1)


def rounding(exact: torch.Tensor, dtype: torch.dtype, parts: int = 1) -> torch.Tensor:
    """The deviation of a rounding of `exact` to dtype: half a unit in its last place, over sqrt(3)."""
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(exact)
    last_place = torch.finfo(dtype).eps * torch.exp2(torch.frexp(exact).exponent.double() - 1)
    return carried(dtype, parts) * last_place / math.sqrt(12)


def result(value: torch.Tensor, variance: torch.Tensor, dtype: torch.dtype, parts: int = 1) -> Exact:
    half = carried(dtype, parts) * half_ulp(value, dtype)
    return Exact(value, variance.sqrt(), half, rounding(value, dtype, parts))


def variance_of_sums(
    a: torch.Tensor, b: torch.Tensor, value: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Rounding variance of sums of products of this dtype, from squares of their factors and their values."""
    n, squares = a.size(-1), a @ b
    if dtype == torch.float32:
        return UNIT**2 / 3 * (n * value.square() / 3 + (n / 6 + 1) * squares)
    return CUT**2 * (n + (n / (3 * STEP)) ** 2) * squares


def exact(
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor | None,
    grad: torch.Tensor,
    parts: int = 1,
    device: torch.device | str = "cpu",
) -> dict[str, Exact]:
    """{"out", "dx", "dy", "dz"} for x (B, M, D), y and grad (B, M, K), z (B, D, K) or None, on a device."""
    dtype = x.dtype
    x, y, grad = (t.detach().to(device, torch.float64) for t in (x, y, grad))
    z = None if z is None else z.detach().to(device, torch.float64)
    leaves = [t if t is None else t.clone().requires_grad_() for t in (x, y, z)]
    out = reference.dot_compress(*leaves)
    dx, dy = torch.autograd.grad(out, leaves[:2], grad)
    b, db = x.mT @ y, x.mT @ grad
    x2, y2, g2 = x.square(), y.square(), grad.square()
    b_variance = variance_of_sums(x2.mT, y2, b, dtype)
    db_variance = variance_of_sums(x2.mT, g2, db, dtype)
    if z is not None:
        b = b + z
        b_variance = b_variance + CUT**2 * b.square()
    dz = result(db, db_variance, dtype)
    b_variance = b_variance + rounding(b, dtype, parts).square()
    db_variance = db_variance + rounding(db, dtype, parts).square()
    b2, db2 = b.square(), db.square()
    dx_sums = variance_of_sums(torch.cat([g2, y2], -1), torch.cat([b2, db2], -1).mT, dx, dtype)
    dx_variance = g2 @ b_variance.mT + y2 @ db_variance.mT + dx_sums
    return {
        "out": result(out.detach(), x2 @ b_variance + variance_of_sums(x2, b2, out.detach(), dtype), dtype),
        "dx": result(dx, dx_variance, dtype),
        "dy": result(dy, x2 @ db_variance + variance_of_sums(x2, db2, dy, dtype), dtype),
        "dz": dz,
    }
