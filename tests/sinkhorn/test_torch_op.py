"""The torch operators: what autograd, compilers, functorch, autocast, checkpoints and threads see of them."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from autograd_calls import assert_equal, dynamic_frames, randn
from forked import python

from helion_sinkhorn import nn, sinkhorn


@pytest.mark.parametrize("options", [{}, {"form": "log"}, {"eps": 0.01}], ids=str)
def test_exported_program_runs_at_other_sizes_of_matrices(options):
    """Exported for 4 x 6: it takes more rows than columns, and as many."""

    class Module(torch.nn.Module):
        def forward(self, x):
            return sinkhorn(x, 5, **options)

    sizes = {1: torch.export.Dim("n", min=2, max=64), 2: torch.export.Dim("m", min=2, max=64)}
    module = torch.export.export(Module(), (randn(3, 4, 6),), dynamic_shapes=(sizes,)).module()
    for n, m in ((4, 6), (7, 6), (6, 6), (64, 2)):
        x = randn(3, n, m)
        assert torch.equal(module(x), Module()(x))


def test_sizes_beyond_the_kernels_are_compiled_once():
    def f(x):
        return sinkhorn(x, 2, form="log")

    assert dynamic_frames(f, [(randn(2, 130 + k, 200 + 3 * k),) for k in range(3)]) == 1


def test_an_eps_that_changes_is_compiled():
    """Each anew; also one that is too large for the kernels with so many columns."""

    def f(x, eps):
        return sinkhorn(x, 20, eps=eps)

    assert dynamic_frames(f, [(randn(2, 4, 16), eps) for eps in (0.5, 0.6, 0.01)]) == 3


FIRST_USE = """
import threading, torch
from concurrent.futures import ThreadPoolExecutor
from helion_sinkhorn import sinkhorn

count = 16
generator = torch.Generator().manual_seed(0)
xs = torch.randn(count, 300, 4, 4, generator=generator)
dps = torch.randn(count, 300, 4, 4, generator=generator)

def run(i):
    leaf = xs[i].clone().requires_grad_()
    p = sinkhorn(leaf, form=("deepseek", "log")[i % 2])
    return p.detach(), *torch.autograd.grad(p, leaf, dps[i])

gate = threading.Barrier(count)

def work(i):
    gate.wait()
    return run(i)

with ThreadPoolExecutor(count) as threads:
    results = [*threads.map(work, range(count))]
print([i for i in range(count) if all(map(torch.equal, results[i], run(i)))])
"""


def test_sixteen_threads_at_first_use():
    done = python("-c", FIRST_USE)
    assert done.stdout.strip() == str(list(range(16))), done.stdout + done.stderr


@pytest.mark.parametrize(
    "module",
    [
        nn.Sinkhorn(7, form="log", first="cols", out_dtype=torch.float64),
        nn.FusedMHC(3),
        nn.SinkhornLaneMixer(4, iters=6),
    ],
    ids=lambda m: type(m).__name__,
)
def test_modules_survive_pickle_and_deepcopy(module):
    x = randn(2, 4, 4)
    for twin in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert twin is not module
        assert repr(twin) == repr(module)
        assert_equal([twin(x)], [module(x)])
