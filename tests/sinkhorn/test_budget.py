"""The error budget itself: exact without rounding, and some tens of roundings; tests/ci has faults."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, Rounding, worst
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.logits import LOGITS, make_logits

FORMS = ["deepseek", "log"]


@pytest.mark.parametrize(("form", "first"), [("deepseek", "rows"), ("log", "cols")])
@pytest.mark.parametrize(("n", "m", "n_iters"), [(4, 4, 100), (3, 5, 20), (1, 7, 50), (7, 2, 1)])
@pytest.mark.parametrize("name", ["randn_3", "masked"])
def test_the_model_without_rounding_is_the_specification(name, n, m, n_iters, form, first):
    x = make_logits(name, 3, n, m).double()
    dy = make_cotangents(x)
    rounding = Rounding(0, unit=0.0)
    p, dx = testing.scaling_form(x, dy, n_iters, 1e-3, form, first, rounding)
    p64, dx64 = testing.exact(x, dy, n_iters, eps=1e-3, form=form, first=first)
    # float64 rounding of 2 T steps of up to 7 terms
    tolerance = 2.0**-53 * 2 * n_iters * 7
    assert (p - p64).abs().max() < tolerance
    assert (dx - dx64).abs().max() < tolerance * dy.abs().sum((-2, -1)).max()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("unit", [2.0**-24, 2.0**-20])
def test_the_budget_is_linear_in_the_unit(form, unit):
    x = make_logits("randn_1", 8, 4, 4)
    dy = make_cotangents(x)
    p, dx = testing.error_budget(x, dy, 5, form=form, unit=unit)
    p_half, dx_half = testing.error_budget(x, dy, 5, form=form, unit=unit / 2)
    # second-order terms and the float64 noise of a difference of two results
    torch.testing.assert_close(p, 2 * p_half, rtol=1e-3, atol=0)
    torch.testing.assert_close(dx, 2 * dx_half, rtol=1e-3, atol=0)


@pytest.mark.parametrize("form", FORMS)
def test_the_budget_of_ordinary_logits_is_some_tens_of_roundings(form):
    x = make_logits("randn_1", 256, 4, 4)
    dy = make_cotangents(x)
    p64, dx64 = testing.exact(x, dy, 20, form=form)
    p_budget, dx_budget = testing.error_budget(x, dy, 20, form=form)
    assert (p_budget / p64).max() < 200 * UNIT
    assert (dx_budget.amax((-2, -1)) / dx64.abs().amax((-2, -1))).median() < 200 * UNIT


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_rounding_to_a_narrow_type_passes_and_truncation_does_not(dtype):
    x = make_logits("randn_1", 256, 4, 4).to(dtype)
    dy = make_cotangents(x)
    p64, dx64 = testing.exact(x, dy, 5)
    p_budget, dx_budget = testing.error_budget(x, dy, 5, out_dtype=dtype)
    assert worst(p64.to(dtype), p64, p_budget) <= 1
    assert worst(dx64.to(dtype), dx64, dx_budget) <= 1
    below = p64.to(dtype)
    below = torch.where(below > p64, below * (1 - torch.finfo(dtype).eps), below)
    assert worst(below, p64, p_budget) > 1


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
