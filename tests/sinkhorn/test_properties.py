"""What must hold for any input, searched by Hypothesis, through the public function on a CPU.

The CPU default is bitwise reproducible, so equalities of bits are asked of it; the kernel
bodies run in Helion's reference mode, where torch's exp2 rounds the tail of a vector
differently, and are tested against the budget.
"""

from __future__ import annotations

import math

import torch
from autograd_calls import value_and_gradient
from hypothesis import given
from hypothesis import strategies as st
from interpreted import FEWER
from sinkhorn_case import Case

from helion_sinkhorn import Implicit, sinkhorn
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits

FORMS = ["deepseek", "log"]
FIRSTS = ["rows", "cols"]
forms, firsts = st.sampled_from(FORMS), st.sampled_from(FIRSTS)
sizes = st.integers(1, 9)
seeds = st.integers(0, 10**6)
scales = st.sampled_from(["randn_0.01", "randn_1", "randn_3"])
iterations = st.integers(1, 30)


def gradient(x, dy, **options):
    return value_and_gradient(lambda t: sinkhorn(t, **options), x, dy)[1]


def judge(case: Case, p, dx=None):
    ratios = case.judge(p, dx)
    assert max(ratios.values()) <= 1, ratios


@given(forms, firsts, scales, sizes, sizes, iterations, seeds)
def test_values_and_gradients_stay_in_the_budget(form, first, logits, n, m, n_iters, seed):
    case = Case(logits, n, m, n_iters, form, first, seed=seed)
    x, dy = case.inputs()
    judge(case, sinkhorn(x, **case.options), gradient(x, dy, **case.options))


@given(st.sampled_from(["direct", "cg"]), scales, sizes, sizes, iterations, seeds)
@FEWER
def test_implicit_gradients_solve_their_equations(solver, logits, n, m, n_iters, seed):
    x = make_logits(logits, 5, n, m, seed=seed)
    dy = make_cotangents(x, seed=seed + 1)
    options = {"form": "log", "backward": Implicit(solver=solver)}
    # with fewer steps than unknowns conjugate gradients stop short on purpose
    n_iters = max(n_iters, min(n, m))
    p, dx = sinkhorn(x, n_iters, form="log"), gradient(x, dy, n_iters=n_iters, **options)
    equations = Stationarity(p, dy, "corrected")
    assert worst(dx, equations.exact, equations.error_budget(solver)) <= 1


peaked = st.sampled_from(["randn_30", "identity_like", "masked", "randn_8"])


@given(forms, firsts, peaked, sizes, sizes, iterations, seeds)
def test_nothing_is_negative_or_above_one(form, first, logits, n, m, n_iters, seed):
    p = sinkhorn(make_logits(logits, 4, n, m, seed=seed), n_iters, form=form, first=first)
    assert (p >= 0).all()
    assert (p <= 1 + 64 * UNIT).all()


@given(forms, firsts, scales, sizes, sizes, iterations, seeds)
def test_constants_added_to_lines_normalised_first_do_not_matter(form, first, logits, n, m, n_iters, seed):
    # logits and constants on a grid of 2^-16: their sums and differences are exact
    x = (make_logits(logits, 4, n, m, seed=seed) * 2**16).round() / 2**16
    shape = (4, n, 1) if first == "rows" else (4, 1, m)
    constants = torch.randint(-20, 21, shape, generator=torch.Generator().manual_seed(seed)) / 4
    options = {"n_iters": n_iters, "form": form, "first": first}
    assert torch.equal(sinkhorn(x + constants, **options), sinkhorn(x, **options))


@given(forms, scales, sizes, sizes, iterations, seeds)
def test_columns_first_is_the_transpose(form, logits, n, m, n_iters, seed):
    case = Case(logits, n, m, n_iters, form, seed=seed)
    x, dy = case.inputs()
    options = {**case.options, "first": "cols"}
    assert torch.equal(sinkhorn(x.mT, **options), sinkhorn(x, **case.options).mT)
    assert torch.equal(gradient(x.mT, dy.mT, **options), gradient(x, dy, **case.options).mT)


@given(forms, firsts, scales, sizes, sizes, iterations, seeds)
def test_the_kernel_bodies_stay_in_the_budget(form, first, logits, n, m, n_iters, seed):
    from helion_sinkhorn.ops.sinkhorn import launch

    case = Case(logits, n, m, n_iters, form, first, seed=seed)
    x, dy = case.inputs()
    judge(case, launch.forward(x, *case.arguments, torch.float32), launch.backward(dy, x, *case.arguments))


@given(forms, firsts, sizes, sizes, seeds, st.data())
def test_nan_stays_in_its_matrix_in_the_kernel_bodies(form, first, n, m, seed, data):
    from helion_sinkhorn.ops.sinkhorn import launch

    case = Case("randn_3", n, m, 4, form, first, seed=seed)
    x, dy = case.inputs()
    at = data.draw(st.integers(0, 4))
    x[at, data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))] = math.nan
    p, dx = launch.forward(x, *case.arguments, torch.float32), launch.backward(dy, x, *case.arguments)
    assert p[at].isnan().all()
    assert dx[at].isnan().all()
    others = torch.arange(5) != at
    assert p[others].isfinite().all()
    assert dx[others].isfinite().all()
