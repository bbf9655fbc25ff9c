"""The largest errors of hc_pre: a rounding of each product and of each sum, and one to the result's dtype.

Everything before the last rounding is float32, so the deviation of an entry follows from its terms, whose
errors are `chain` or `tree` units of roundoff.  The budget is five deviations, and half a unit in the last
place of a narrow result.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, chain, half_ulp, tree
from helion_sinkhorn.ops.mhc.pre import reference

RESULTS = ("y", "dx", "dpre")


def exact(
    x: torch.Tensor, pre: torch.Tensor, dy: torch.Tensor, dtype: torch.dtype = torch.float64
) -> dict[str, torch.Tensor]:
    """The results in float64, or another dtype: the specification and autograd."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in (x, pre)]
    y = reference.hc_pre(*leaves)
    results = y.detach(), *torch.autograd.grad(y, leaves, dy.to(dtype))
    return dict(zip(RESULTS, results, strict=True))


def deviation(x: torch.Tensor, pre: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """The standard deviation of each entry before its last rounding.

    A sum over streams may take them in order; one over C entries adds at most 2 sqrt(C) numbers in a chain,
    as a loop over tiles does and a tree within each.
    """
    x, pre, dy = (t.detach().double() for t in (x, pre, dy))
    n, c = x.shape[-2:]
    weights, upstream = pre.unsqueeze(-1), dy.unsqueeze(-2)
    units = {
        "y": chain(n) * (weights * x).square().sum(-2).sqrt(),
        "dx": (weights * upstream).abs(),
        "dpre": tree(c) * (upstream * x).square().sum(-1).sqrt(),
    }
    return {name: UNIT * t for name, t in units.items()}


def error_budget(x: torch.Tensor, pre: torch.Tensor, dy: torch.Tensor) -> dict[str, torch.Tensor]:
    """The largest error that an implementation may have on these inputs, entry by entry, for each result.

    Args:
        x: (..., n, C), pre (..., n) and dy (..., C), each of the dtype in which it is given.
    """
    truth, sigma = exact(x, pre, dy), deviation(x, pre, dy)
    dtypes = {"y": x.dtype, "dx": x.dtype, "dpre": pre.dtype}
    return {name: SIGMAS * sigma[name] + half_ulp(t, dtypes[name]) for name, t in truth.items()}
