"""The CPU path beside what it shares with the kernels (test_kernels.py tests both)."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from forked import python

from helion_sinkhorn import reference
from helion_sinkhorn.lab.sinkhorn.budget import Case
from helion_sinkhorn.ops.sinkhorn import eager, line_sums
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit


@pytest.mark.parametrize(
    ("n", "m", "eps", "n_iters"),
    [(1, 128, 1.0, 20), (2, 64, 1.0, 30), (4, 16, 0.5, 100), (16, 4, 0.5, 100), (3, 5, 0.5, 400)],
)
def test_rectangular_matrices_with_a_large_eps_stay_in_range(n, m, eps, n_iters):
    x, dy = (randn(8, n, m, seed=seed) for seed in (0, 1))
    leaf = x.double().requires_grad_()
    true = reference.sinkhorn(leaf, n_iters, eps=eps)
    (gradient,) = torch.autograd.grad(true, leaf, dy.double())
    arguments = n_iters, eps, "deepseek", "rows"
    torch.testing.assert_close(
        eager.forward(x, *arguments, torch.float32).double(), true.detach(), rtol=1e-4, atol=0
    )
    torch.testing.assert_close(eager.backward(dy, x, *arguments).double(), gradient, rtol=0, atol=1e-5)


def test_slices_of_the_batch_do_not_show(monkeypatch):
    case = Case("randn_3", 3, 4, batch=50)
    x, dy = case.inputs()
    whole = eager.forward(x, *case.arguments, torch.float32), eager.backward(dy, x, *case.arguments)
    monkeypatch.setattr(line_sums, "CACHE_BYTES", 1)
    parts = eager.forward(x, *case.arguments, torch.float32), eager.backward(dy, x, *case.arguments)
    assert len([*eager._slices("rows", x)]) > 1
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("solver", ["direct", "cg"])
@pytest.mark.parametrize(("n", "m"), [(1, 3), (3, 5), (15, 16), (16, 16), (17, 33), (64, 64)])
def test_an_implicit_gradient_has_the_same_bits_alone_and_beside_others(n, m, solver):
    """Few lie in memory otherwise than many, and long lines otherwise than short ones."""
    p, dy = randn(37, n, m).softmax(-1), randn(37, n, m, seed=1)

    def of(part):
        return implicit.backward(dy[part], p[part], 5, "corrected", solver, torch.float32)

    whole = of(slice(None))
    for part in (slice(0, 1), slice(34, 37), slice(1, 30)):
        assert torch.equal(of(part), whole[part])


FORKS = """
import os, time, torch
from helion_sinkhorn import sinkhorn
torch.set_num_threads(2)
for batch in (100, 1 << 15):
    x = torch.randn(batch, 4, 4, requires_grad=True)
    for form in ("deepseek", "log"):
        sinkhorn(x, form=form).sum().backward()
    p = sinkhorn(x)
    child = os.fork()
    if child == 0:
        torch.softmax(torch.ones(4096, 64), -1)
        os._exit(0 if torch.equal(sinkhorn(x), p) else 1)
    for _ in range(100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            print(batch, status)
            break
        time.sleep(0.1)
    else:
        os.kill(child, 9)
"""


def test_a_process_forked_after_a_call_does_not_hang():
    done = python("-c", FORKS)
    assert done.stdout == "100 0\n32768 0\n", done.stderr
