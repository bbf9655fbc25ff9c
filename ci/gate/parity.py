"""Parity: the errors of a result, divided by the errors of another way to compute it."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import UNIT


def parity(
    result: torch.Tensor, baseline: torch.Tensor, exact: torch.Tensor, floor_ulps: float = 4
) -> tuple[float, float]:
    """(median, worst) ratio of a result's errors to a baseline's.

    The error of a group is its largest absolute error, or `floor_ulps` roundoffs of its largest exact entry
    if that is more: a baseline that happens to be exact is no standard.

    Args:
        result, baseline, exact: (groups, entries).

    Returns:
        the median of the groups' ratios, and the largest error of the result over the baseline's largest.
    """
    result, baseline, exact = (x.detach().double() for x in (result, baseline, exact))
    floor = floor_ulps * UNIT * exact.abs().amax(1)
    own, other = (
        torch.maximum((x - exact).abs().amax(1).nan_to_num(nan=torch.inf), floor) for x in (result, baseline)
    )
    # skip groups of zeros without an error in either
    ratios = torch.where(own == other, 1.0, own / other)
    largest, against = own.max(), other.max()
    return ratios.median().item(), 1.0 if largest == against else (largest / against).item()
