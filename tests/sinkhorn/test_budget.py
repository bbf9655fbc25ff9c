"""The error budget itself is some tens of roundings; tests/ci has faults."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, worst
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.logits import LOGITS, make_logits


@pytest.mark.parametrize(("form", "first"), [("deepseek", "rows"), ("log", "cols")])
@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (7, 2)])
def test_the_budget_of_ordinary_logits_is_some_tens_of_roundings(n, m, form, first):
    """If its model were not the specification, it would be larger."""
    x, options = make_logits("randn_1", 256, n, m), {"form": form, "first": first}
    dy = make_cotangents(x)
    p64, dx64 = testing.exact(x, dy, 20, **options)
    p_budget, dx_budget = testing.error_budget(x, dy, 20, **options)
    assert (p_budget / p64).max() < 200 * UNIT
    assert (dx_budget.amax((-2, -1)) / dx64.abs().amax((-2, -1))).median() < 200 * UNIT


def test_nan_passes_only_where_it_is_expected():
    p = torch.tensor([[[1.0, float("nan")]]], dtype=torch.float64)
    budget = torch.full_like(p, 0.1)
    assert worst(p, p, budget) == 0
    assert worst(p, torch.ones_like(p), budget) == float("inf")
    assert worst(torch.ones_like(p), p, budget) == float("inf")


@pytest.mark.parametrize("name", LOGITS)
def test_masks_leave_an_entry_in_every_line_and_seeds_decide(name):
    for n, m in ((1, 1), (4, 4), (2, 7), (7, 2)):
        x = make_logits(name, 5, n, m, seed=3)
        assert torch.equal(x, make_logits(name, 5, n, m, seed=3))
        assert x.isfinite().any(-1).all()
        assert x.isfinite().any(-2).all()
        if name == "permutation" and n == m:
            assert torch.equal(x.isfinite().sum(-1), torch.ones(5, n, dtype=torch.long))
