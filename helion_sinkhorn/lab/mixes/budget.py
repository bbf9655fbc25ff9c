"""The largest errors of hc_mixes: float32 sums of exact products, in blocks.

A sum of n products is made in blocks of at most BLOCK, which are added to a float32 one after another.  A
matrix unit truncates its partial sum, always to one side, at most every STEP products, each time by CUT / 2
of its size on average, so that a block loses up to CUT BLOCK / (2 STEP) of itself.  Each of n / BLOCK
additions rounds to nearest.  Partial sums are assumed as large as the larger of |sum| and the root of its
squares.

A product with a factor of more than 8 bits is made of PARTS of bfloat16, without the smallest ones, and has
an error of PRODUCT units.  A dx of fewer bits than float32 is rounded by 2^-9 or 2^-12 of itself, so the
factors of its products may have two parts, 16 bits, and then the error is NARROW units.  With precision
"tf32" each factor of 24 bits is truncated or rounded to 11 bits, with an error of up to TF32, half of it on
average.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, half_ulp
from helion_sinkhorn.ops.mhc.mixes import reference

RESULTS = ("mixes", "dx", "dfn")
SMALLEST_NORMAL = torch.finfo(torch.float32).smallest_normal
CUT = 2.0**-23
"""Relative error of one truncation to float32."""
STEP = 8
"""Fewest 16-bit products that a matrix unit adds to its accumulator at a time (arXiv 2511.10909)."""
BLOCK = 128
"""Products that are added up before they are added to the rest."""
PARTS = (1, 3, 6)
"""Products of bfloat16 parts for a product, by its number of factors of more than 8 bits: 1, 3, or 6 of 9."""
PRODUCT = 4.0
"""The error of such a product in units of roundoff."""
NARROW = 75.0
"""The error of a product of two factors with two parts, as a root mean square in units of roundoff: three
products of rests are left out, each 0.17 * 2^-16 (a rest is 0.41 * 2^-8 of a number on average)."""
TF32 = 2.0**-10
"""Relative error of cutting a factor to the 11 bits of TF32."""
FACTORS = 3.0
"""The error of r, a root and a quotient, and of its product with an upstream gradient, in units."""


@dataclass(frozen=True)
class Exact:
    """One result in float64, and the errors of float32 arithmetic."""

    value: torch.Tensor
    deviation: torch.Tensor
    """The deviation of the error before the last rounding, each cause with the size of its bound."""
    leaning: torch.Tensor
    """The part of the error that is always to one side, towards 0."""
    half: torch.Tensor
    """Largest error of the last rounding."""

    @classmethod
    def of(cls, value, variance, leaning, dtype: torch.dtype, shape: torch.Size) -> Exact:
        """A result that is rounded to this dtype, in this shape."""
        parts = value, variance.sqrt(), leaning, half_ulp(value, dtype)
        value, deviation, leaning, half = (t.view(shape) for t in parts)
        return cls(value, deviation, leaning, half)

    @property
    def budget(self) -> torch.Tensor:
        """Largest error a correct implementation shows."""
        return SIGMAS * self.deviation + SMALLEST_NORMAL + self.half


@dataclass(frozen=True)
class Sum:
    """A sum of products: its value and the sum of their squares."""

    value: torch.Tensor
    squares: torch.Tensor
    products: int
    """The number of products, with those of parts counted separately."""
    cut_factors: int = 0
    """The number of factors in each product that are truncated to 11 bits."""
    off: float = PRODUCT
    """The error of each product in units of roundoff."""

    @property
    def cuts(self) -> float:
        """The relative loss of a block by truncation."""
        return CUT * min(self.products, BLOCK) / (2 * STEP)

    @property
    def leaning(self) -> torch.Tensor:
        """How far the sum may be truncated towards 0."""
        return (self.cuts + self.cut_factors * TF32 / 2) * self.value.abs()

    @property
    def variance(self) -> torch.Tensor:
        """Variance of its error."""
        sums = self.cuts**2 + UNIT**2 * self.products / min(self.products, BLOCK)
        each = (self.off * UNIT) ** 2 + self.cut_factors * TF32**2 / 3
        size = torch.maximum(self.squares, self.value.square())
        lean = self.cut_factors * TF32 / 2 * self.value
        return sums * size + each * self.squares + lean.square()


def sum_with_x(workload: MixesWorkload, value: torch.Tensor, squares: torch.Tensor, terms: int) -> Sum:
    """A sum of products of x with float32 numbers, over the columns of a token or over tokens."""
    if workload.precision == "tf32":
        return Sum(value, squares, terms, 1 + (workload.dtype == torch.float32))
    return Sum(value, squares, terms * PARTS[1 + (workload.dtype != torch.bfloat16)])


def sum_of_rows(workload: MixesWorkload, value: torch.Tensor, squares: torch.Tensor, rows: int) -> Sum:
    """A sum of products of float32 numbers over the rows of fn, for a dx of the workload's dtype."""
    if workload.precision == "tf32":
        return Sum(value, squares, rows, 2)
    off = PRODUCT if workload.dtype == torch.float32 else NARROW
    return Sum(value, squares, rows * PARTS[2], off=off)


def variance_of_norm(size: int) -> float:
    """Variance of r relative to it: the root halves the error of the mean of so many squares."""
    one = torch.ones((), dtype=torch.float64)
    return Sum(one, one, size).variance.item() / 4 + (FACTORS * UNIT) ** 2


def evaluated(
    workload: MixesWorkload,
    x: torch.Tensor,
    dmixes: torch.Tensor,
    fn: torch.Tensor,
    device: torch.device | str = "cpu",
) -> dict[str, Exact]:
    """All RESULTS, token by token except dfn, which is a sum over the tokens of an element.

    Args:
        x: (B, T, n, C) or (B, T, n C), B elements of T tokens.
        dmixes: (B, T, M).
        fn: (B, M, n C), that of each element, with the norm weight in it.
        device: where this is computed, and stays.

    Returns:
        mixes (B, T, M), dx of the shape of x, dfn (B, M, n C).
    """
    shape, size = x.shape, fn.size(-1)
    x = x.reshape(*dmixes.shape[:2], size)
    x, dmixes, fn = (t.detach().to(device, torch.float64) for t in (x, dmixes, fn))
    mixes, dx, dfn = by_autograd(workload, x, dmixes, fn)
    mean = x.square().mean(-1, keepdim=True)
    root = mean.sqrt()
    r = 1 / (root + workload.norm_eps) if workload.eps_outside else 1 / (mean + workload.norm_eps).sqrt()
    of_r = variance_of_norm(size)

    z = sum_with_x(workload, mixes / r, x.square() @ fn.square().mT, size)
    mixes_variance = r.square() * z.variance + of_r * mixes.square()

    g = r * dmixes
    product = sum_of_rows(workload, g @ fn, g.square() @ fn.square(), fn.size(1))
    along = (dmixes * mixes).sum(-1, keepdim=True)
    squares = (dmixes * mixes).square().sum(-1, keepdim=True)
    along_variance = Sum(along, squares, fn.size(1)).variance
    along_variance = along_variance + (dmixes.square() * mixes_variance).sum(-1, keepdim=True)
    # d x of the norm is k along x, k made of two factors as exact as r
    k = r.square() / size if not workload.eps_outside else torch.where(root > 0, r / root / size, 0.0)
    norm = k * along * x
    dx_variance = (
        product.variance
        + of_r * product.value.square()
        + (k * x).square() * along_variance
        + 4 * of_r * norm.square()
        + (UNIT * (product.value.abs() + norm.abs())).square()
    )
    tokens = sum_with_x(workload, dfn, g.square().mT @ x.square(), x.size(1))
    dfn_variance = tokens.variance + of_r * tokens.squares

    single = torch.float32
    return {
        "mixes": Exact.of(mixes, mixes_variance, r * z.leaning, single, mixes.shape),
        "dx": Exact.of(dx, dx_variance, product.leaning, workload.dtype, shape),
        "dfn": Exact.of(dfn, dfn_variance, tokens.leaning, single, dfn.shape),
    }


def by_autograd(workload: MixesWorkload, x, dmixes, fn) -> tuple[torch.Tensor, ...]:
    """(mixes, dx, dfn) of the specification, an element at a time."""
    elements = []
    for one, upstream, rows in zip(x, dmixes, fn, strict=True):
        leaf, fn_leaf = (t.clone().requires_grad_() for t in (one, rows))
        mixes = reference.hc_mixes(leaf, fn_leaf, workload.norm_eps, eps_outside=workload.eps_outside)
        elements.append((mixes.detach(), *torch.autograd.grad(mixes, (leaf, fn_leaf), upstream)))
    return tuple(map(torch.stack, zip(*elements, strict=True)))
