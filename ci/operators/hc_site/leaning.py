"""Biases of a site's results where functions, and cuts of the matrix unit, err to one side everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ci.gate import gate
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.mixes.budget import Exact
from helion_sinkhorn.lab.site import budget


def systematic(
    site: budget.Site, limits: Mapping[str, Exact], spreads: Mapping[str, torch.Tensor]
) -> dict[str, float]:
    """The largest bias of functions that err to one side, and of mixes that do, with that of cuts."""
    most = dict.fromkeys(limits, 0.0)
    for seed in range(rounding.SAMPLES):
        found = budget.leaning(site, gate.Systematic(seed))
        for name, limit in limits.items():
            most[name] = max(most[name], abs(gate.bias(found[name], limit.value, spreads[name])))
    return {name: most[name] + (e.leaning / spreads[name]).mean().item() for name, e in limits.items()}
