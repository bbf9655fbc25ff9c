"""What must hold for any input, searched by Hypothesis, through the public function on a CPU.

The CPU default is bitwise reproducible, so equalities of bits are asked of it; the kernel
bodies run in Helion's reference mode, where torch's exp2 rounds the tail of a vector
differently, and are tested against the budget.
"""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreted import FEWER

from helion_sinkhorn import Implicit, sinkhorn
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, worst
from helion_sinkhorn.lab.sinkhorn.budget import Case, error_budget
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
    leaf = x.detach().requires_grad_()
    return torch.autograd.grad(sinkhorn(leaf, **options), leaf, dy)[0]


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
    budget = equations.error_budget(solver)
    assert worst(dx, equations.exact, budget) <= 1
    # what is the same along a row or a column of dP is undone by normalising
    generator = torch.Generator().manual_seed(seed)
    moved = dy + torch.randn(5, n, 1, generator=generator) + torch.randn(5, 1, m, generator=generator)
    allowed = budget + Stationarity(p, moved, "corrected").error_budget(solver)
    # and moving it rounds dP
    allowed = allowed + 4 * UNIT * moved.abs().amax((-2, -1), keepdim=True)
    assert worst(gradient(x, moved, n_iters=n_iters, **options), dx.double(), allowed) <= 1


@given(forms, firsts, st.sampled_from(["randn_0.01", "randn_1"]), sizes, sizes, seeds)
@FEWER
def test_lines_sum_to_one_at_convergence(form, first, logits, n, m, seed):
    case = Case(logits, n, m, 100, form, first, seed=seed)
    x, dy = case.inputs()
    p = sinkhorn(x, **case.options).double()
    # a sum may be off by the budgets of its entries together
    budget, _ = error_budget(x, dy, **case.options)
    trail, lead = (-2, -1) if first == "rows" else (-1, -2)
    # eps takes part of every sum, and of each entry's share of the other side
    eps = 0.0 if form == "log" else 4e-6 * max(n, m)
    # trail lines are normalised last; lead lines share what the trail lines hold
    share = p.size(lead) / p.size(trail)
    assert ((p.sum(trail) - 1).abs() <= budget.sum(trail) + eps).all()
    assert ((p.sum(lead) - share).abs() <= budget.sum(lead) + eps * share + 1e-9).all()


@given(
    forms,
    firsts,
    st.sampled_from(["randn_30", "identity_like", "masked", "randn_8"]),
    sizes,
    sizes,
    iterations,
    seeds,
)
def test_nothing_is_negative_or_above_one(form, first, logits, n, m, n_iters, seed):
    p = sinkhorn(make_logits(logits, 4, n, m, seed=seed), n_iters, form=form, first=first)
    assert (p >= 0).all()
    assert (p <= 1 + 64 * UNIT).all()


@given(firsts, st.sampled_from(["randn_0.01", "randn_1"]), sizes, sizes, seeds)
def test_constants_added_to_any_line_vanish_at_convergence(first, logits, n, m, seed):
    x = make_logits(logits, 4, n, m, seed=seed, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    rows, cols = torch.randn(4, n, 1, generator=generator), torch.randn(4, 1, m, generator=generator)
    options = {"n_iters": 300, "form": "log", "first": first}
    torch.testing.assert_close(
        sinkhorn(x + rows + cols, **options), sinkhorn(x, **options), rtol=1e-11, atol=0
    )


@given(forms, firsts, scales, sizes, sizes, iterations, seeds)
def test_constants_added_to_lines_normalised_first_do_not_matter(form, first, logits, n, m, n_iters, seed):
    # logits and constants on a grid of 2^-16: their sums and differences are exact
    x = (make_logits(logits, 4, n, m, seed=seed) * 2**16).round() / 2**16
    shape = (4, n, 1) if first == "rows" else (4, 1, m)
    constants = torch.randint(-20, 21, shape, generator=torch.Generator().manual_seed(seed)) / 4
    options = {"n_iters": n_iters, "form": form, "first": first}
    assert torch.equal(sinkhorn(x + constants, **options), sinkhorn(x, **options))


@given(forms, firsts, scales, sizes, sizes, iterations, seeds)
def test_permuting_lines_permutes_the_result(form, first, logits, n, m, n_iters, seed):
    case = Case(logits, n, m, n_iters, form, first, seed=seed)
    x, dy = case.inputs()
    generator = torch.Generator().manual_seed(seed)
    rows, cols = torch.randperm(n, generator=generator), torch.randperm(m, generator=generator)

    def permuted(t):
        return t[:, rows][:, :, cols]

    p, dx = sinkhorn(permuted(x), **case.options), gradient(permuted(x), permuted(dy), **case.options)
    back_rows, back_cols = rows.argsort(), cols.argsort()
    judge(case, p[:, back_rows][:, :, back_cols], dx[:, back_rows][:, :, back_cols])


@given(forms, scales, sizes, sizes, iterations, seeds)
def test_columns_first_is_the_transpose(form, logits, n, m, n_iters, seed):
    case = Case(logits, n, m, n_iters, form, seed=seed)
    x, dy = case.inputs()
    options = {**case.options, "first": "cols"}
    assert torch.equal(sinkhorn(x.mT, **options), sinkhorn(x, **case.options).mT)
    assert torch.equal(gradient(x.mT, dy.mT, **options), gradient(x, dy, **case.options).mT)


@given(forms, firsts, sizes, sizes, iterations, st.integers(2, 70), seeds, st.data())
def test_a_matrix_s_bits_do_not_depend_on_its_batch(form, first, n, m, n_iters, batch, seed, data):
    case = Case("randn_3", n, m, n_iters, form, first, batch=batch, seed=seed)
    x, dy = case.inputs()
    p, dx = sinkhorn(x, **case.options), gradient(x, dy, **case.options)
    begin = data.draw(st.integers(0, batch - 1))
    rows = slice(begin, data.draw(st.integers(begin + 1, batch)))
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(sinkhorn(x[rows], **case.options), p[rows])
    assert torch.equal(gradient(x[rows], dy[rows], **case.options), dx[rows])
    assert torch.equal(sinkhorn(x[order], **case.options), p[order])
    assert torch.equal(gradient(x[order], dy[order], **case.options), dx[order])


@given(firsts, scales, sizes, sizes, iterations, seeds)
def test_gradient_along_the_side_normalised_first_sums_to_zero(first, logits, n, m, n_iters, seed):
    # a constant added to such a line changes nothing, whatever n_iters and in both forms
    for form in FORMS:
        case = Case(logits, n, m, n_iters, form, first, seed=seed)
        x, dy = case.inputs()
        dx = gradient(x, dy, **case.options)
        axis = -1 if first == "rows" else -2
        _, budget = error_budget(x, dy, **case.options)
        assert (dx.double().sum(axis).abs() <= budget.sum(axis)).all()


@given(firsts, st.sampled_from(["randn_0.01", "randn_1"]), st.integers(2, 9), st.integers(2, 9), seeds)
def test_gradient_along_the_other_side_sums_to_zero_as_it_converges(first, logits, n, m, seed):
    x = make_logits(logits, 4, n, m, seed=seed, dtype=torch.float64)
    dy = torch.randn(4, n, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    axis = -2 if first == "rows" else -1
    sums = [
        gradient(x, dy, n_iters=n_iters, form="log", first=first).sum(axis).abs().max().item()
        for n_iters in (1, 3, 200)
    ]
    # in proportion to the logits where they are small
    assert sums[0] > 1e-4
    assert sums[1] < sums[0]
    assert sums[2] < 1e-12


@given(
    forms, firsts, sizes, sizes, iterations, seeds,
    st.sampled_from(["nan", "inf", "row", "column"]), st.data(),
)  # fmt: skip
def test_what_is_undefined_stays_in_its_matrix(form, first, n, m, n_iters, seed, what, data):
    if what in ("row", "column"):
        # zeros of a softmax are no sum of zeros
        form = "log"
    case = Case("randn_3", n, m, n_iters, form, first, seed=seed)
    x, dy = case.inputs()
    p, dx = sinkhorn(x, **case.options), gradient(x, dy, **case.options)
    at, row, column = (data.draw(st.integers(0, k - 1)) for k in (5, n, m))
    lines = {"row": (row,), "column": (slice(None), column)}
    spoiled = x.clone()
    spoiled[at][lines.get(what, (row, column))] = -math.inf if what in lines else float(what)
    others = torch.arange(5) != at
    p_spoiled, dx_spoiled = sinkhorn(spoiled, **case.options), gradient(spoiled, dy, **case.options)
    assert torch.equal(p_spoiled[others], p[others])
    assert torch.equal(dx_spoiled[others], dx[others])
    assert p_spoiled[at].isnan().all()
    assert dx_spoiled[at].isnan().all()


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
