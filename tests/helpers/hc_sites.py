"""Inputs of hc_site, and its results with gradients."""

from __future__ import annotations

import torch
from autograd_calls import randn, values_and_gradients

from helion_sinkhorn import hc_site
from helion_sinkhorn.lab.site.budget import RESULTS


def site_inputs(*lead, n=4, c=12, dtype=torch.float32, seed=0):
    """(x, fn, scale, base) and the upstream gradients of (residual, y, post, comb)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    m, size = n * n + 2 * n, n * c
    given = (
        randn(*lead, n, c, seed=seed, dtype=dtype), randn(m, size, seed=seed + 1, dtype=wide, scale=0.2),
        1 + randn(3, seed=seed + 2, dtype=wide, scale=0.2), randn(m, seed=seed + 3, dtype=wide),
    )  # fmt: skip
    upstream = (
        randn(*lead, n, c, seed=seed + 4, dtype=dtype), randn(*lead, c, seed=seed + 5, dtype=dtype),
        randn(*lead, n, seed=seed + 6, dtype=wide), randn(*lead, n, n, seed=seed + 7, dtype=wide),
    )  # fmt: skip
    return given, upstream


def site_results(given, upstream, f=hc_site, **options):
    """RESULTS by name."""
    of_residual, *of_others = upstream
    y, post, comb, _, *gradients = values_and_gradients(f, given, (*of_others, of_residual), **options)
    return dict(zip(RESULTS, (y, post, comb, *gradients), strict=True))
