"""backward="implicit" on a CUDA or ROCm device, against the same equations in float64 on the CPU.

`make accuracy` tests both solvers there, and the systems for comparison; test_implicit.py has other sizes.
"""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn import Implicit, plan, sinkhorn
from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit.systems import solver_for

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def gradient(x, dy):
    leaf = x.detach().requires_grad_()
    p = sinkhorn(leaf, form="log", backward="implicit", implementation="helion")
    return p.detach(), torch.autograd.grad(p, leaf, dy)[0]


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
    p, dx = gradient(x.to(DEVICE), dy.to(DEVICE))
    # large matrices have more unknowns than steps, in float64 too
    expected = implicit.backward(dy.double(), p.double().cpu(), 20, "corrected", "auto", torch.float64)
    budget = Stationarity(p, dy, "corrected").error_budget(solver_for("auto", n, m), dtype)
    assert worst(dx, expected, budget) <= 1


@pytest.mark.parametrize("n", [3, 4, 8, 32])
def test_the_layout_of_the_upstream_gradient_changes_no_bit(n):
    x = make_logits("randn_3", 300, n, n).to(DEVICE)
    dy = make_cotangents(x).to(DEVICE)
    assert torch.equal(gradient(x, dy.mT.contiguous().mT)[1], gradient(x, dy)[1])


def test_the_plan_names_the_kernel():
    x = make_logits("randn_1", 8, 4, 4).to(DEVICE)
    assert plan(x, backward="implicit").backward.startswith("sinkhorn_implicit_direct")
    chosen = plan(x, backward=Implicit(solver="cg"))
    assert chosen.backward.startswith("sinkhorn_implicit_cg")
