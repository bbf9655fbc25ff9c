"""backward="implicit" on a CUDA or ROCm device, against the same equations in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch
from cuda_graphs import capture

from helion_sinkhorn import Implicit, plan, sinkhorn
from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit.systems import solver_for

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def gradient(x, dy, n_iters=20, out_dtype=None, backward="implicit"):
    leaf = x.detach().requires_grad_()
    p = sinkhorn(leaf, n_iters, form="log", backward=backward, implementation="helion", out_dtype=out_dtype)
    return p.detach(), torch.autograd.grad(p, leaf, dy)[0]


def check(
    n, m, logits="randn_1", batch=33, n_iters=20, system="corrected", solver="auto", dtype=torch.float32
):
    x = make_logits(logits, batch, n, m, dtype=dtype)
    dy = make_cotangents(x)
    p, dx = gradient(x.to(DEVICE), dy.to(DEVICE), n_iters, backward=Implicit(system, solver))
    p64, dy64 = p.double().cpu(), dy.double()
    expected = implicit.backward(dy64, p64, n_iters, system, solver, torch.float64)
    solved = "reduced" if (system, solver) == ("full", "direct") else system
    limit = solver_for(solver, n, m) if system == "corrected" else "cg"
    budget = Stationarity(p64, dy64, solved).error_budget(limit, dtype)
    assert worst(dx, expected, budget) <= 1, (n, m, logits, batch)
    return (dx.double().cpu() - expected).abs().max() / expected.abs().max()


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize(
    ("n", "m"), [(1, 1), (2, 2), (3, 3), (4, 4), (3, 5), (7, 2), (8, 8), (16, 16), (33, 20)]
)
def test_sizes(n, m, solver):
    for batch in (1, 33, 515):
        check(n, m, batch=batch, solver=solver)


@pytest.mark.parametrize(("n", "m"), [(64, 64), (128, 128), (100, 128)])
def test_large_matrices(n, m):
    check(n, m, batch=3)


@pytest.mark.parametrize("n", [3, 4, 8])
def test_kinds_of_logits(n):
    for logits in ("randn_8", "uniform_4", "masked", "permutation"):
        check(n, n, logits, solver="direct")
    assert check(n, n, "identity_like", solver="direct") < 2e-5


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize("system", ["reduced", "full"])
def test_systems_for_comparison(system, solver):
    for n in (3, 4):
        check(n, n, system=system, solver=solver, n_iters=5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [3, 4, 8])
def test_narrow_types(n, dtype):
    check(n, n, batch=64, dtype=dtype)


@pytest.mark.usefixtures("fresh_caches")
@pytest.mark.parametrize("n", [3, 4, 8, 32])
def test_bits_do_not_depend_on_the_batch_the_layout_or_the_run(n, monkeypatch):
    # of one config: batches far apart may get entries that differ
    monkeypatch.setattr(store, "folders", list)
    x = make_logits("randn_3", 300, n, n).to(DEVICE)
    dy = make_cotangents(x).to(DEVICE)
    _, dx = gradient(x, dy)
    for rows in (slice(None), slice(0, 1), slice(3, 130), slice(299, 300)):
        assert torch.equal(gradient(x[rows], dy[rows].mT.contiguous().mT)[1], dx[rows])


def test_cuda_graphs():
    x = make_logits("randn_1", 1000, 4, 4).to(DEVICE)
    dy = make_cotangents(x).to(DEVICE)
    expected = gradient(-x, dy)
    graph, captured = capture(lambda: gradient(x, dy))
    x.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(map(torch.equal, captured, expected))


def test_the_plan_names_the_kernel():
    x = make_logits("randn_1", 8, 4, 4).to(DEVICE)
    assert plan(x, backward="implicit").backward.startswith("sinkhorn_implicit_direct")
    chosen = plan(x, backward=Implicit(solver="cg"))
    assert chosen.backward.startswith("sinkhorn_implicit_cg")


@pytest.mark.parametrize(
    "workload", [w for w in tagged("implicit") if w.batch < 1 << 20], ids=lambda w: w.name
)
def test_workloads(workload):
    x, dy = workload.make_inputs(device=DEVICE)
    leaf = x.requires_grad_()
    p = sinkhorn(leaf, implementation="helion", **workload.options)
    (dx,) = torch.autograd.grad(p, leaf, dy)
    rows = slice(0, 128)
    equations = Stationarity(p[rows], dy[rows], "corrected")
    solver = solver_for("auto", workload.n, workload.m)
    assert worst(dx[rows], equations.exact, equations.error_budget(solver, workload.dtype)) <= 1
