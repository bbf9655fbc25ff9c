"""The specification against closed forms and another library; its error budget is some tens of roundings."""

from __future__ import annotations

import math

import pytest
import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, worst
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.logits import LOGITS, make_logits

FIRSTS = ["rows", "cols"]
# 2 T divisions and sums of at most 16 terms, each within a few units of 2^-53
ROUNDING = 2.0**-53 * 2 * 20 * 16


def logits(name, n, m, seed=0):
    return make_logits(name, 3, n, m, seed=seed, dtype=torch.float64)


def relative(actual, expected):
    return ((actual - expected).abs() / expected.abs()).max().item()


@pytest.mark.parametrize("n_iters", [1, 2, 20])
@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (5, 2), (1, 7), (1, 1)])
def test_rank_one_logits_are_balanced_by_one_iteration(n, m, first, n_iters):
    generator = torch.Generator().manual_seed(0)
    rows, cols = (torch.randn(3, k, generator=generator, dtype=torch.float64) for k in (n, m))
    p = reference.sinkhorn(rows.unsqueeze(2) + cols.unsqueeze(1), n_iters, form="log", first=first)
    expected = torch.full_like(p, 1 / n if first == "rows" else 1 / m)
    assert relative(p, expected) < ROUNDING


@pytest.mark.parametrize("first", FIRSTS)
@pytest.mark.parametrize("n", [1, 2, 4, 9])
def test_permutation_masks_give_the_permutation(n, first):
    x = logits("permutation", n, n)
    p = reference.sinkhorn(x, 20, form="log", first=first)
    assert (p - x.isfinite().double()).abs().max() < ROUNDING


def test_two_deepseek_iterations_written_out():
    x, eps = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]], dtype=torch.float64), 0.25
    rows = [[0.25 + eps, 0.75 + eps], [0.5 + eps, 0.5 + eps]]
    for n_iters in (1, 2):
        sums = [rows[0][j] + rows[1][j] + eps for j in range(2)]
        p = [[row[j] / sums[j] for j in range(2)] for row in rows]
        expected = torch.tensor(p, dtype=torch.float64)
        assert relative(reference.sinkhorn(x, n_iters, eps=eps), expected) < ROUNDING
        rows = [[value / (sum(row) + eps) for value in row] for row in p]


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (16, 9)])
@pytest.mark.parametrize("name", ["randn_0.01", "randn_1", "randn_3"])
def test_converged_values_agree_with_pot(name, n, m):
    ot = pytest.importorskip("ot", reason="POT is not installed (extra: oracle)")
    x = logits(name, n, m)[0]
    # columns sum to one last, so rows to m / n; POT's kernel is exp(-cost / 1)
    rows, cols = torch.full((n,), m / n, dtype=x.dtype), torch.ones(m, dtype=x.dtype)
    plan = ot.sinkhorn(
        rows.numpy(), cols.numpy(), -x.numpy(), 1.0, numItermax=20000, stopThr=1e-14, warn=True
    )
    p = reference.sinkhorn(x, 2000, form="log")
    # stopThr bounds the norm of the violated marginal
    assert (p - torch.from_numpy(plan)).abs().max() < 1e-12


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
