"""What the implicit gradient is tested by: its equations in float64, and limits that solvers meet."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import UNIT, worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit.systems import SYSTEMS

ENOUGH = 1000


def drawn(logits, n, m, n_iters=20, batch=64):
    """(P rounded to float32, upstream gradient)."""
    x = make_logits(logits, batch, n, m)
    return reference.sinkhorn(x.double(), n_iters, form="log").float(), make_cotangents(x)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (5, 3), (3, 8)])
def test_anywhere_rows_and_columns_sum_to_zero_and_the_rest_is_theirs(n, m):
    p, dy = drawn("randn_3", n, m, n_iters=1)
    dx = Stationarity(p, dy, "corrected").exact
    assert dx.sum(-1).abs().max() < 1e-14
    assert dx.sum(-2).abs().max() < 1e-14
    # dX / P - G is a function of the row plus one of the column
    potential = dy.double() - dx / p.double()
    mixed = potential - potential[:, :1] - potential[:, :, :1] + potential[:, :1, :1]
    assert mixed.abs().max() < 1e-10
    assert (Stationarity(p.mT, dy.mT, "corrected").exact.mT - dx).abs().max() < 1e-14


@pytest.mark.parametrize("system", SYSTEMS)
def test_without_rounding_nothing_is_allowed_and_it_grows_with_the_unit(system):
    equations = Stationarity(*drawn("randn_1", 4, 4), system)
    budget = equations.error_budget("cg")
    assert equations.error_budget("cg", unit=0.0).max() == 0
    assert torch.allclose(equations.error_budget("cg", unit=16 * UNIT), 16 * budget, rtol=1e-3)
    assert (budget.amax((-2, -1)) < 1e-4 * equations.exact.abs().amax((-2, -1))).all()


LARGE = pytest.mark.nightly("half a second each; masked logits of this size run always")


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize(
    ("logits", "n", "m"),
    [
        pytest.param(logits, n, m, marks=LARGE if n == 32 and logits != "masked" else ())
        for logits in ("randn_1", "randn_8", "masked", "identity_like", "permutation")
        for n, m in ((4, 4), (9, 9), (5, 3), (32, 32))
    ],
)
def test_float32_solvers_stay_inside(logits, n, m, solver):
    p, dy = drawn(logits, n, m)
    equations = Stationarity(p, dy, "corrected")
    got = implicit.backward(dy, p, ENOUGH, "corrected", solver, torch.float32)
    found = worst(got, equations.exact, equations.error_budget(solver))
    assert found <= 1
    # a thousandth is no fault of theirs: the limit is not so wide that nothing could break it
    assert found > 1e-3 or logits == "permutation"


def test_only_elimination_keeps_the_digits_of_nearly_disconnected_matrices():
    p, dy = drawn("identity_like", 4, 4)
    equations = Stationarity(p, dy, "corrected")
    direct, cg = (equations.error_budget(solver) for solver in ("direct", "cg"))
    assert (cg > 20 * direct).all()
    by_cg = implicit.backward(dy, p, ENOUGH, "corrected", "cg", torch.float32)
    assert worst(by_cg, equations.exact, direct) > 10
    by_direct = implicit.backward(dy, p, ENOUGH, "corrected", "direct", torch.float32)
    assert worst(by_direct, equations.exact, cg) < 0.1


def test_a_narrow_result_may_be_rounded_once():
    p, dy = drawn("randn_1", 4, 4)
    equations = Stationarity(p.bfloat16(), dy.bfloat16(), "corrected")
    budget = equations.error_budget("direct", torch.bfloat16)
    assert 0.9 < worst(equations.exact.bfloat16(), equations.exact, budget) <= 1
    assert worst(equations.exact.bfloat16(), equations.exact, equations.error_budget("direct")) > 100
