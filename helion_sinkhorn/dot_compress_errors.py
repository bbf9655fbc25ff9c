"""What results of dot compress may be off by, from where they are rounded (docs/dcpp.md, Rounding).

Each rounding to the dtype of x is taken for uniform in its interval, and so independent of the others; a sum
of n terms in float32 for n roundings of partial sums, each cut and not rounded, as matrix units may.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.testing import half_ulp

CUT = 2.0**-23
"""Relative error of one truncation to float32."""
SIGMAS = 7.0
"""A normal number is further from its mean once in 4e11."""


@dataclass(frozen=True)
class Exact:
    """One result in float64, with the deviation of what is rounded before it and its own last rounding."""

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


def rounding(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The deviation of one rounding of `exact` to a narrow dtype: half a unit in its last place, over sqrt(3)."""
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(exact)
    unit = torch.finfo(dtype).eps / 2
    return unit * torch.exp2(torch.frexp(exact).exponent.double() - 1) / math.sqrt(3)


def result(value: torch.Tensor, variance: torch.Tensor, dtype: torch.dtype) -> Exact:
    return Exact(value, variance.sqrt(), half_ulp(value, dtype), rounding(value, dtype))


def variance_of_sums(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Of the entries of a b, squares given: a.size(-1) truncations of partial sums."""
    return CUT**2 * a.size(-1) * (a @ b)


def exact(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, grad: torch.Tensor, parts: int = 1
) -> dict[str, Exact]:
    """{"out", "dx", "dy", "dz"} for x (B, M, D), y and grad (B, M, K), z (B, D, K) or None, on the CPU."""
    dtype = x.dtype
    tensors = [None if t is None else t.detach().to("cpu", torch.float64) for t in (x, y, z, grad)]
    leaves = [None if t is None else t.clone().requires_grad_() for t in tensors[:3]]
    x, y, z, grad = tensors
    out = reference.dot_compress(*leaves)
    dx, dy = torch.autograd.grad(out, leaves[:2], grad)
    db = x.mT @ grad
    b = x.mT @ y if z is None else x.mT @ y + z

    def carried(value: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
        rounded = rounding(value, dtype).square()
        return sums + (rounded if parts == 1 else rounded * (torch.finfo(dtype).eps / 2) ** 2)

    x2, y2, g2 = x.square(), y.square(), grad.square()
    b2, db2 = b.square(), db.square()
    db_sums = variance_of_sums(x2.mT, g2)
    b_sums = variance_of_sums(x2.mT, y2) + (0 if z is None else CUT**2 * b2)
    b_variance, db_variance = carried(b, b_sums), carried(db, db_sums)
    dx_variance = g2 @ b_variance.mT + y2 @ db_variance.mT
    dx_sums = variance_of_sums(torch.cat([g2, y2], -1), torch.cat([b2, db2], -1).mT)
    return {
        "out": result(out.detach(), x2 @ b_variance + variance_of_sums(x2, b2), dtype),
        "dx": result(dx, dx_variance + dx_sums, dtype),
        "dy": result(dy, x2 @ db_variance + variance_of_sums(x2, db2), dtype),
        "dz": result(db, db_sums, dtype),
    }
