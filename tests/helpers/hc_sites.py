"""Inputs of hc_site, its results with gradients, and their shares of the budget."""

from __future__ import annotations

import functools

import torch
from autograd_calls import randn, values_and_gradients

from helion_sinkhorn import hc_site
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.site.budget import RESULTS, evaluated
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload


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


def first_element(workload: HcSiteWorkload):
    """The first element of a workload as `site_inputs` has it, the norm weight in fn."""
    x, fn, weight, scale, base, *upstream = workload.make_inputs()
    given = x[0], fn if weight is None else fn * weight, scale, base
    return given, tuple(t[0] for t in upstream)


@functools.lru_cache(maxsize=64)
def limits_of(workload: HcSiteWorkload):
    """The budget of the first element."""
    (x, *parameters), upstream = first_element(workload)
    return evaluated(workload, *(t[None] for t in (x, *upstream, *parameters)))


def shares_of_budget(workload: HcSiteWorkload, found) -> dict[str, float]:
    """The largest error of each result of the first element in units of its budget."""
    return {
        name: worst(found[name].reshape(e.value.shape), e.value, e.budget)
        for name, e in limits_of(workload).items()
    }
