"""What holds for results outside of the sample that is held to its error budget entry by entry."""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.testing.rounding import half_ulp

BEYOND_SAMPLE = 8.0
"""They may be off by so much more, relative to the largest entry."""


def relative(budget: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest budget of a sample over its largest entry."""
    return float(budget.max()) / max(float(exact.abs().max()), torch.finfo(torch.float64).tiny)


def share_beyond(actual: torch.Tensor, exact: torch.Tensor, within: float) -> float:
    """The largest error in units of what is allowed, `within` that of the sample; NaN counts as any error."""
    exact = exact.to(actual.device)
    allowed = BEYOND_SAMPLE * within * exact.abs().max() + half_ulp(exact, actual.dtype)
    return largest_share(actual, exact, allowed)


def largest_share(actual: torch.Tensor, exact: torch.Tensor, allowed: torch.Tensor) -> float:
    """The largest error in units of what is allowed entry by entry; NaN counts as any error."""
    return largest_part((actual.detach().double() - exact).abs(), allowed)


def largest_part(wrong: torch.Tensor, allowed: torch.Tensor) -> float:
    """The same of absolute errors; a NaN among what is allowed allows none."""
    parts = torch.where(wrong == 0, 0.0, wrong / allowed)
    return float(parts.nan_to_num(nan=math.inf, posinf=math.inf).max())
