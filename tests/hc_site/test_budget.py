"""The limits of hc_site's errors: the truth is the specification's, and float32 PyTorch is within them."""

from __future__ import annotations

import pytest
import torch
from hc_sites import first_element, limits_of, shares_of_budget, site_results

from helion_sinkhorn import hc_site, reference
from helion_sinkhorn.lab.site.budget import NARROW, RESULTS
from helion_sinkhorn.lab.site.workloads import ROWS

NAMES = "fp32", "odd", "two_streams", "constants", "eps_outside", "zero_token"
WORKLOADS = {name: row for row in ROWS for name in NAMES if row.name == f"hc_site_{name}"}


def autograd(workload, dtype):
    """RESULTS of the specification in this dtype."""
    given, upstream = first_element(workload)
    wide = [t.to(dtype) for t in given], [t.to(dtype) for t in upstream]
    return site_results(*wide, f=reference.hc_site, **workload.of_reference)


@pytest.mark.parametrize("name", NAMES)
def test_the_truth_is_float64_autograd_of_the_specification(name):
    workload = WORKLOADS[name]
    found = limits_of(workload)
    for name, t in autograd(workload, torch.float64).items():
        size, value = t.abs().max(), found[name].value.view(t.shape)
        torch.testing.assert_close(value / size, t / size, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_float32_autograd_is_within_and_planted_faults_are_not(name):
    workload = WORKLOADS[name]
    found = autograd(workload, torch.float32)
    rounded = {k: t.to(workload.dtype) if k in NARROW else t for k, t in found.items()}
    shares = shares_of_budget(workload, rounded)
    assert max(shares.values()) <= 1, shares
    # a part of each result that is 2^-12 of it, 2^-6 of a narrow one
    wrong = {
        k: t.double() * (1 + (2.0**-6 if t.dtype == torch.bfloat16 else 2.0**-12)) for k, t in rounded.items()
    }
    assert all(share > 1 for share in shares_of_budget(workload, wrong).values())


def test_parts_with_gradients_that_autograd_adds_are_beyond_the_limit_of_dx():
    """Five roundings to bfloat16 instead of one."""
    workload = WORKLOADS["odd"]
    given, upstream = first_element(workload)
    found = site_results(given, upstream, f=hc_site, implementation="pytorch", **workload.options)
    shares = shares_of_budget(workload, found)
    assert shares["dx"] > 1
    assert max(share for name, share in shares.items() if name != "dx") <= 1, shares
    assert set(shares) == set(RESULTS)
