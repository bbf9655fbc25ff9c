"""Large matrices and marginals on a GPU: against float64, in graphs, and equal bits."""

from __future__ import annotations

import pytest
import sinkhorn_ranks
import torch
from autograd_calls import assert_equal, randn, value_and_gradient
from cuda_graphs import capture
from large_calls import assert_near, exact, given, on, results
from processes import WORLD, Ranks

from helion_sinkhorn import plan, reference, sinkhorn, sinkhorn_potentials
from helion_sinkhorn.ops.sinkhorn.large import launch
from helion_sinkhorn.recipes import log_optimal_transport, sinkhorn_knopp_teacher

pytestmark = pytest.mark.gpu
CALLS = [
    (1024, 1024, "rows", False, 5, torch.float32),
    (160, 150, "rows", True, 1, torch.float32),
    (160, 150, "rows", True, 100, torch.float32),
    (129, 129, "cols", True, 3, torch.float32),
    (300, 1000, "rows", True, 3, torch.bfloat16),
    (1025, 1025, "rows", True, 20, torch.float32),
    (300, 257, "rows", True, 5, torch.bfloat16),
    (64, 8192, "rows", False, 3, torch.float32),
]


@pytest.mark.parametrize(("n", "m", "first", "sides", "n_iters", "dtype"), CALLS, ids=str)
def test_values_and_gradients(n, m, first, sides, n_iters, dtype):
    inputs = given(n, m, sides, dtype=dtype)
    assert_near(results(launch, on("cuda", inputs), n_iters, first), exact(inputs, n_iters, first))


DEEPSEEK = [
    (1024, 1024, "rows", 5, torch.float32), (160, 150, "rows", 1, torch.float32),
    (160, 150, "cols", 100, torch.float32), (300, 1000, "rows", 3, torch.bfloat16),
    (64, 8192, "rows", 3, torch.float16), (33, 9001, "rows", 4, torch.float32),
    (40, 20000, "rows", 3, torch.bfloat16), (9001, 33, "cols", 4, torch.float32),
]  # fmt: skip


@pytest.mark.parametrize(("n", "m", "first", "n_iters", "dtype"), DEEPSEEK, ids=str)
@pytest.mark.parametrize("eps", [1e-6, 1e-9, 0.0])
def test_both_forms_against_the_specification(n, m, first, n_iters, dtype, eps):
    x, dy = randn(2, n, m, scale=2, dtype=dtype), randn(2, n, m, seed=1, dtype=dtype)
    form = {"form": "deepseek", "eps": eps} if eps else {"form": "log"}
    true = value_and_gradient(
        lambda t: reference.sinkhorn(t, n_iters, first=first, **form), x.double(), dy.double()
    )
    by_kernels = value_and_gradient(
        lambda t: sinkhorn(t, n_iters, first=first, implementation="helion", **form), x.cuda(), dy.cuda()
    )
    rounding = 4e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
    for a, b in zip(by_kernels, true, strict=True):
        assert (a.cpu().double() - b).abs().max() <= rounding * b.abs().max()


@pytest.mark.parametrize("form", ["deepseek", "log"])
@pytest.mark.parametrize("m", [150, 257, 9001])
def test_equal_bits_again_in_a_part_of_the_batch_and_in_a_graph(form, m):
    x, dy = (randn(9, 160, m, seed=seed, device="cuda") for seed in (0, 1))

    def of(part):
        return value_and_gradient(
            lambda t: sinkhorn(t, 7, form=form, implementation="helion"), x[part], dy[part]
        )

    whole = of(slice(None))
    for part in (slice(None), slice(8, 9), slice(2, 7)):
        assert_equal(of(part), [t[part] for t in whole])
    graph, kept = capture(lambda: of(slice(None)))
    graph.replay()
    assert_equal(kept, whole)


@pytest.mark.parametrize(
    "recipe",
    [
        lambda x: log_optimal_transport(x, torch.ones((), device="cuda"), 5),
        lambda x: sinkhorn_knopp_teacher(x, 0.05),
    ],
    ids=["transport", "teacher"],
)
def test_a_recipe_copies_nothing_from_the_host(recipe):
    x = randn(160, 150).cuda()
    expected = recipe(x)
    graph, captured = capture(lambda: recipe(x))
    graph.replay()
    assert torch.equal(captured, expected)


def test_the_public_functions_take_the_kernels():
    x = randn(2, 160, 150)
    for form in ("deepseek", "log"):
        assert plan(x.cuda(), form=form, implementation="helion").implementation == "helion"
    assert plan(x.cuda(), form="log").implementation == "helion"
    own = {"temperature": 0.5}
    p = sinkhorn(x.cuda(), 20, form="log", implementation="helion", **own)
    torch.testing.assert_close(p.cpu(), sinkhorn(x, 20, form="log", **own), rtol=1e-4, atol=1e-6)
    f, g = sinkhorn_potentials(x.cuda(), 20, implementation="helion", **own)
    again = (x.cuda() / 0.5 + f.unsqueeze(-1) + g.unsqueeze(-2)).exp()
    torch.testing.assert_close(again, p, rtol=1e-4, atol=1e-6)
    lengths = torch.tensor([100, 150])
    part = sinkhorn(x.cuda(), 20, form="log", row_lengths=lengths.cuda(), implementation="helion")
    true = sinkhorn(x, 20, form="log", row_lengths=lengths)
    torch.testing.assert_close(part.cpu(), true, rtol=1e-4, atol=1e-6)
    assert part[0, 100:].eq(0).all()


@pytest.fixture(scope="module")
def on_two_gpus():
    if torch.cuda.device_count() < WORLD:
        pytest.skip(f"{WORLD} GPUs are needed")
    ranks = Ranks("cuda")
    yield ranks
    ranks.stop()


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_a_teacher_on_two_gpus(on_two_gpus, share):
    """By the kernels, but where the lines of one part are short: then all take PyTorch."""
    parts = on_two_gpus(sinkhorn_ranks.of_teacher_on_gpus, share)
    assert [by_kernels for by_kernels, _ in parts] == [share == 0.5] * WORLD
    true = sinkhorn_knopp_teacher(sinkhorn_ranks.logits()[0], 0.1, 3)
    torch.testing.assert_close(torch.cat([t for _, t in parts]).double(), true, rtol=0, atol=2e-5)


def test_gradients_on_two_gpus(on_two_gpus, on_two_processes):
    """By PyTorch, as on two CPUs, which test_distributed.py compares with the whole matrices."""
    for on_gpus, true in zip(*(ranks(sinkhorn_ranks.of_group) for ranks in (on_two_gpus, on_two_processes)),
                             strict=True):  # fmt: skip
        assert on_gpus.keys() == true.keys()
        for call, tensors in true.items():
            rounding = 1e-11 if tensors[0].dtype == torch.float64 else 2e-5
            for a, b in zip(on_gpus[call], tensors, strict=True):
                assert (a - b).abs().max() <= rounding * b.abs().max(), call


def test_the_gradient_keeps_four_vectors_an_iteration():
    x = randn(1, 1024, 1024, device="cuda").requires_grad_()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    p = sinkhorn(x, 100, form="log")
    kept = torch.cuda.memory_allocated() - before - p.numel() * 4
    assert kept <= 4 * 100 * 1024 * 4
