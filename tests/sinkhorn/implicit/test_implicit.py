"""backward="implicit": equations in float64, bodies in reference mode, the public function, error limits."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from autograd_calls import value_and_gradient
from reference_mode import each_device

from helion_sinkhorn import Implicit, marginal_error, nn, plan, reference, sinkhorn
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.implicit.systems import SYSTEMS, cg_steps, solver_for
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates, default_choice

SOLVERS = ["direct", "cg"]
SQUARE = [(n, n) for n in (1, 2, 3, 4, 5, 7, 8, 12)]
RECTANGULAR = [(1, 4), (3, 5), (5, 3), (8, 2), (4, 16)]
ENOUGH = 1000


def balanced_matrix(n, m, *, n_iters=300, logits="randn_1", batch=4, form="log", first="rows", eps=1e-6):
    """(P, upstream gradient, exact gradient) in float64."""
    x = make_logits(logits, batch, n, m, dtype=torch.float64)
    dy = make_cotangents(x)
    p, dx = value_and_gradient(
        lambda leaf: reference.sinkhorn(leaf, n_iters, form=form, first=first, eps=eps), x, dy
    )
    return p, dy, dx


def dense(p, dy, system):
    """dX from a pseudo-inverse of the whole system: no elimination, no iteration, float64."""
    return Stationarity(p, dy, system).exact


class TestEquations:
    """implicit.backward in float64."""

    @pytest.mark.parametrize(("form", "first"), [("log", "rows"), ("deepseek", "cols")])
    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize(("n", "m"), SQUARE + RECTANGULAR)
    def test_at_a_fixed_point_it_is_the_exact_gradient(self, n, m, solver, form, first):
        # eps stands in the denominators of the iteration and in its fixed point; what is left out is the
        # eps beside the softmax, a factor z / (z + eps) of each entry
        p, dy, dx = balanced_matrix(n, m, form=form, first=first, eps=1e-12)
        got = implicit.backward(dy, p, ENOUGH, "corrected", solver, torch.float64)
        assert marginal_error(p).max() < 1e-11
        assert (got - dx).abs().max() < 1e-10

    def test_eps_moves_it_by_no_more_than_eps_over_the_softmax(self):
        eps = 1e-4
        p, dy, dx = balanced_matrix(4, 4, form="deepseek", eps=eps)
        smallest = make_logits("randn_1", 4, 4, 4, dtype=torch.float64).softmax(-1).amin((-2, -1))
        error = (implicit.backward(dy, p, ENOUGH, "corrected", "direct", torch.float64) - dx).abs()
        bound = 4 * eps / smallest * dx.abs().amax((-2, -1))
        assert (error.amax((-2, -1)) < bound).all()
        assert error.max() > 1e-7

    @pytest.mark.parametrize(
        ("system", "solver", "dense_system", "sizes"),
        [
            ("corrected", "direct", "corrected", SQUARE + RECTANGULAR),
            ("corrected", "cg", "corrected", SQUARE + RECTANGULAR),
            ("reduced", "direct", "reduced", SQUARE[1:]),
            ("reduced", "cg", "reduced", SQUARE[1:]),
            ("full", "direct", "reduced", SQUARE[1:]),
            ("full", "cg", "full", SQUARE[1:]),
        ],
    )
    @pytest.mark.parametrize("n_iters", [1, 3, 300])
    def test_it_is_the_dense_solution(self, n_iters, system, solver, dense_system, sizes):
        for n, m in sizes:
            p, dy, dx = balanced_matrix(n, m, n_iters=n_iters)
            got = implicit.backward(dy, p, ENOUGH, system, solver, torch.float64)
            assert (got - dense(p, dy, dense_system)).abs().max() < 1e-11, (n, m)
            if system == "corrected":
                # its rows and columns sum to zero at any P
                assert got.sum(-1).abs().max() < 1e-12
                assert got.sum(-2).abs().max() < 1e-11
            else:
                assert ((got - dx).abs().max() < 1e-10) == (n_iters == 300)

    @pytest.mark.parametrize("system", SYSTEMS)
    def test_fewer_steps_of_cg_than_unknowns_fall_short(self, system):
        p, dy, _ = balanced_matrix(12, 12)
        errors = [
            (implicit.backward(dy, p, steps, system, "cg", torch.float64) - dense(p, dy, system)).abs().max()
            for steps in (2, 4, ENOUGH)
        ]
        assert errors[0] > 4 * errors[1]
        assert errors[1] > 1e6 * errors[2]

    @pytest.mark.parametrize("solver", SOLVERS)
    def test_parts_that_nothing_joins(self, solver):
        blocks = balanced_matrix(3, 3, n_iters=500, batch=2)[0]
        p = torch.block_diag(*blocks)[torch.randperm(6, generator=torch.Generator().manual_seed(3))]
        dy = make_cotangents(p)
        got = implicit.backward(dy, p, ENOUGH, "corrected", solver, torch.float64)
        assert (got - dense(p, dy, "corrected")).abs().max() < 1e-12
        eye = torch.eye(4, dtype=torch.float64)
        assert (
            implicit.backward(make_cotangents(eye), eye, 20, "corrected", solver, torch.float64) == 0
        ).all()


def kernel(dy, p, system, solver, n_iters=ENOUGH, **variant):
    choice = None
    if variant:
        call = implicit_launch.implicit_call(*p.shape[-2:], p.dtype, n_iters)
        choice = door.choose(KERNELS[f"sinkhorn_implicit_{solver}"], call, len(p), DEVICES["h200"])
        choice = launch.with_variant(choice, **variant)
    return implicit_launch.implicit_backward(dy, p, n_iters, system, solver, torch.float32, choice)


def judge(got, p, dy, system, solver, dtype=torch.float32):
    """The largest error in units of what the solver may show (docs/dev/math.md)."""
    equations = Stationarity(p, dy, system)
    return worst(got, equations.exact, equations.error_budget(solver, dtype))


MOST = (4, 4), (33, 20)
OTHERS = pytest.mark.nightly("a fifth of a second each; masked logits of every size run always")


class TestKernels:
    """The bodies, and the path of a CPU, by the equations in float64 at the same P."""

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize(
        ("n", "m", "logits"),
        [
            pytest.param(*size, logits, marks=() if logits == "masked" or size in MOST else OTHERS)
            for size in (*SQUARE[2:], *RECTANGULAR, (33, 20))
            for logits in ("randn_8", "identity_like", "masked")
        ],
    )
    @each_device
    def test_corrected(self, n, m, logits, solver, device):
        p, dy, _ = balanced_matrix(n, m, logits=logits, n_iters=20, batch=4 if device == "cpu" else 515)
        p, dy = p.float().to(device), dy.float().to(device)
        by_cpu = implicit.backward(dy, p, ENOUGH, "corrected", solver, torch.float32)
        for dx in (kernel(dy, p, "corrected", solver), by_cpu):
            assert judge(dx, p, dy, "corrected", solver) <= 1

    @pytest.mark.parametrize("solver", SOLVERS)
    @pytest.mark.parametrize("system", ["reduced", "full"])
    @pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16])
    def test_for_comparison(self, n, system, solver):
        p, dy, _ = balanced_matrix(n, n, n_iters=5)
        p, dy = p.float(), dy.float()
        # by elimination the full system is the reduced one
        solved = "reduced" if solver == "direct" else system
        assert judge(kernel(dy, p, system, solver), p, dy, solved, "cg") <= 1

    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("n", [2, 4, 8])
    def test_loads_in_either_way(self, n, dtype, packed):
        p, dy, _ = balanced_matrix(n, n, n_iters=20)
        p, dy = p.to(dtype), dy.to(dtype)
        assert judge(kernel(dy, p, "corrected", "direct", packed=packed), p, dy, "corrected", "direct") <= 1


class TestPublicFunction:
    def test_options_reach_the_solver(self):
        x = make_logits("randn_3", 64, 8, 8)
        dy = make_cotangents(x)
        results = {}
        for system, solver in itertools.product(SYSTEMS, SOLVERS):
            module = nn.Sinkhorn(5, backward=Implicit(system, solver))
            p, results[system, solver] = value_and_gradient(module, x, dy)
            expected = implicit.backward(dy, p, 5, system, solver, torch.float32)
            assert torch.equal(results[system, solver], expected)
        distinct = {tuple(r.flatten().tolist()) for r in results.values()}
        # elimination of the full system leaves the reduced one
        assert len(distinct) == 5

    @pytest.mark.parametrize("first", ["rows", "cols"])
    @pytest.mark.parametrize("form", ["deepseek", "log"])
    def test_p_is_that_of_the_exact_gradient(self, form, first):
        x = make_logits("randn_1", 6, 3, 5)
        dy = make_cotangents(x)
        options = {"n_iters": 6, "form": form, "first": first}
        p, dx = value_and_gradient(lambda t: sinkhorn(t, backward="implicit", **options), x, dy)
        assert torch.equal(p, sinkhorn(x, **options))
        assert torch.equal(dx, implicit.backward(dy, p, 6, "corrected", "auto", torch.float32))

    def test_plan_says_what_is_kept(self):
        x = torch.zeros(2, 4, 4)
        assert "P kept" in plan(x, backward="implicit").backward
        assert "logits kept" in plan(x).backward

    def test_nan_stays_in_its_matrix(self):
        x = make_logits("randn_1", 5, 4, 4)
        x[2, 0, 0] = math.nan
        for solver in SOLVERS:
            module = nn.Sinkhorn(backward=Implicit(solver=solver))
            _, dx = value_and_gradient(module, x, make_cotangents(x))
            assert dx[2].isnan().all()
            assert dx[[0, 1, 3, 4]].isfinite().all()

    @pytest.mark.parametrize(
        ("shape", "options", "said"),
        [
            ((2, 3, 5), {"backward": Implicit("reduced")}, "a matrix of 3 x 5 they cannot"),
            ((2, 5, 3), {"backward": Implicit("full")}, "use system='corrected'"),
            ((2, 4, 4), {"backward": "auto"}, "backward is 'auto'; use one of 'exact', 'implicit'"),
        ],
    )
    def test_errors(self, shape, options, said):
        for call in (sinkhorn, plan):
            with pytest.raises(ValueError, match=said):
                call(torch.zeros(shape), **options)


class TestMarginalError:
    def test_known_values(self):
        assert marginal_error(torch.full((2, 3, 5), 0.7)).tolist() == [0, 0]
        p = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
        assert marginal_error(p).item() == pytest.approx(0.25)
        assert marginal_error(p.mT).item() == pytest.approx(0.25)
        assert marginal_error(1 - 1e-6 + torch.zeros(4, 4)) == 0

    def test_it_falls_with_the_iterations(self):
        x = make_logits("randn_3", 32, 3, 5, dtype=torch.float64)
        errors = [marginal_error(sinkhorn(x, t)).max().item() for t in (1, 5, 20, 200)]
        assert errors[0] > 2 * errors[1] > 4 * errors[2] > 100 * errors[3]

    def test_a_vector_is_refused(self):
        with pytest.raises(ValueError, match=r"p has shape \(3,\)"):
            marginal_error(torch.ones(3))


def test_rules():
    assert [solver_for("auto", n, 40) for n in (4, 5)] == ["direct", "cg"]
    assert solver_for("cg", 2, 2) == "cg"
    assert cg_steps("full", 16, 16, 100) == 32
    assert cg_steps("corrected", 8, 5, 10) == 5
    assert cg_steps("reduced", 64, 64, 20) == 20


@pytest.mark.parametrize(
    ("n", "m", "thread"), [(8, 8, (8, 4)), (16, 8, (0, 0)), (8, 16, (0, 0)), (32, 32, (0, 0))]
)
def test_a_key_that_transposed_views_share_leaves_threads_to_triton(n, m, thread):
    kernel, device = KERNELS["sinkhorn_implicit_cg"], DEVICES["h200"]
    call = implicit_launch.implicit_call(n, m, torch.float32, 20)
    assert default_choice(kernel, call, device).variant == (("thread", thread),)
    threads = {dict(c.variant)["thread"] for c in candidates(kernel, call, device)}
    assert (threads == {(0, 0)}) == (n != m)


def test_only_elimination_keeps_the_digits_of_nearly_disconnected_matrices():
    x = make_logits("identity_like", 64, 4, 4)
    p, dy = reference.sinkhorn(x.double(), 20, form="log").float(), make_cotangents(x)
    equations = Stationarity(p, dy, "corrected")
    direct, cg = (equations.error_budget(solver) for solver in ("direct", "cg"))
    assert (cg > 20 * direct).all()
    by_cg = implicit.backward(dy, p, ENOUGH, "corrected", "cg", torch.float32)
    assert worst(by_cg, equations.exact, direct) > 10
    by_direct = implicit.backward(dy, p, ENOUGH, "corrected", "direct", torch.float32)
    assert worst(by_direct, equations.exact, cg) < 0.1


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("n", "m", "dtype"),
    [
        (1, 1, torch.float32), (2, 2, torch.float32), (128, 128, torch.float32), (100, 128, torch.float32),
        (3, 3, torch.float16), (4, 4, torch.float16), (8, 8, torch.float16),
    ],
)  # fmt: skip
def test_other_sizes_and_types(n, m, dtype):
    x = make_logits("randn_1", 3, n, m, dtype=dtype)
    dy = make_cotangents(x)
    options = {"form": "log", "backward": "implicit", "implementation": "helion"}
    p, dx = value_and_gradient(lambda t: sinkhorn(t, **options), x.cuda(), dy.cuda())
    # large matrices have more unknowns than steps, in float64 too
    expected = implicit.backward(dy.double(), p.double().cpu(), 20, "corrected", "auto", torch.float64)
    budget = Stationarity(p, dy, "corrected").error_budget(solver_for("auto", n, m), dtype)
    assert worst(dx, expected, budget) <= 1


@pytest.mark.gpu
def test_the_plan_names_the_kernel():
    x = make_logits("randn_1", 8, 4, 4).cuda()
    assert plan(x, backward="implicit").backward.startswith("sinkhorn_implicit_direct")
    chosen = plan(x, backward=Implicit(solver="cg"))
    assert chosen.backward.startswith("sinkhorn_implicit_cg")
