"""Parity: the errors of a result over those of another way to compute it."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import UNIT


def parity(
    result: torch.Tensor, baseline: torch.Tensor, exact: torch.Tensor, floor_ulps: float = 4
) -> tuple[float, float]:
    """(median, worst) ratio of a result's errors to a baseline's, group by group.

    The error of a group is its largest absolute one, and at least `floor_ulps` roundoffs of the group's
    largest exact entry, since nobody owes an exact result because the other happens to have one.

    Args:
        result, baseline, exact: (groups, entries).

    Returns:
        the median of the groups' ratios, and the largest error of the result over that of the baseline.
    """
    result, baseline, exact = (x.detach().double() for x in (result, baseline, exact))
    floor = floor_ulps * UNIT * exact.abs().amax(1)
    own, other = (
        torch.maximum((x - exact).abs().amax(1).nan_to_num(nan=torch.inf), floor) for x in (result, baseline)
    )
    # a group of zeros that both have right has no error to compare
    ratios = torch.where(own == other, 1.0, own / other)
    largest, against = own.max(), other.max()
    return ratios.median().item(), 1.0 if largest == against else (largest / against).item()
