"""Recipes beside the code that they stand for: values, and gradients where there are some."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn, values_and_gradients

from helion_sinkhorn import sinkhorn
from helion_sinkhorn.recipes import log_optimal_transport, sinkhorn_knopp_teacher, sinkhorn_router

FLOAT64 = torch.float64


def superglue(scores, bin_score, iters):
    """transformers' function of that name."""
    reason = "the oracle extra brings it: transformers==5.23.0"
    module = pytest.importorskip("transformers.models.superglue.modeling_superglue", reason=reason)
    return module.log_optimal_transport(scores, bin_score, iters)


@pytest.mark.parametrize("bins", [(), (1, 1), (2, 1, 1)])
@pytest.mark.parametrize(("n", "m"), [(5, 7), (1, 3), (60, 40), (190, 150)])
@pytest.mark.parametrize(
    "iters", [1, pytest.param(20, marks=pytest.mark.nightly("few and many run always")), 100]
)
def test_superglue(n, m, iters, bins):
    scores, upstream = randn(2, n, m, dtype=FLOAT64, scale=3), randn(2, n + 1, m + 1, seed=1, dtype=FLOAT64)
    bin_score = randn(*bins, seed=2, dtype=FLOAT64)
    ours, true = (
        values_and_gradients(of, [scores, bin_score], [upstream], iters=iters)
        for of in (log_optimal_transport, superglue)
    )
    for a, b in zip(ours, true, strict=True):
        assert a.shape == b.shape
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_superglue_in_float32_errs_as_it_does():
    scores, upstream = 8 * randn(1, 190, 150), randn(1, 191, 151, seed=1)

    def of(function, dtype):
        given = scores.to(dtype), torch.ones((), dtype=dtype)
        return values_and_gradients(function, given, [upstream], iters=50)

    true = of(superglue, FLOAT64)
    for a, b, exact in zip(of(log_optimal_transport, torch.float32), of(superglue, torch.float32), true,
                           strict=True):  # fmt: skip
        error, of_other = ((t.double() - exact).abs().max() for t in (a, b))
        assert error <= 4 * of_other + 2**-22 * exact.abs().max(), (error, of_other)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_superglue_keeps_narrow_types(dtype):
    narrow = log_optimal_transport(randn(2, 5, 7, dtype=dtype), torch.ones((), dtype=dtype), 3)
    wide = log_optimal_transport(randn(2, 5, 7, dtype=dtype).float(), torch.ones(()), 3)
    assert narrow.dtype == dtype
    torch.testing.assert_close(narrow, wide.to(dtype), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("bin_score", "iters", "error", "words"),
    [
        (1.0, 5, TypeError, "bin_score is a float; pass a tensor"),
        (torch.ones(3), 5, ValueError, r"\(3,\); pass one that broadcasts to \(2, 1, 1\)"),
        (torch.ones(2, 1, 1, 1), 5, ValueError, "broadcasts"),
        (torch.ones(()), 0, ValueError, "iters is 0; pass an int from 1"),
    ],
)
def test_superglue_refuses(bin_score, iters, error, words):
    with pytest.raises(error, match=words):
        log_optimal_transport(torch.zeros(2, 3, 4), bin_score, iters)


def dino(teacher_output, teacher_temp, n_iterations):
    """As dinov2 writes it, for one process."""
    q = torch.exp(teacher_output / teacher_temp).t()
    k, b = q.shape
    q = q / q.sum()
    for _ in range(n_iterations):
        q = q / q.sum(dim=1, keepdim=True) / k
        q = q / q.sum(dim=0, keepdim=True) / b
    return (q * b).t()


@pytest.mark.parametrize(("n", "k"), [(6, 9), (40, 300), (300, 40)])
@pytest.mark.parametrize("n_iterations", [1, 3])
def test_dino(n, k, n_iterations):
    x = randn(n, k, dtype=FLOAT64, scale=0.5).requires_grad_()
    targets = sinkhorn_knopp_teacher(x, 0.07, n_iterations)
    assert not targets.requires_grad
    torch.testing.assert_close(targets, dino(x.detach(), 0.07, n_iterations), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dino_s_exponentials_do_not_overflow(dtype):
    """exp(x / 0.04) is infinite from 3.5 on in float32, and not in float64."""
    x = (6 * randn(40, 300)).to(dtype)
    assert dino(x.float(), 0.04, 3).isnan().any()
    targets = sinkhorn_knopp_teacher(x, 0.04)
    assert targets.dtype == torch.float32
    torch.testing.assert_close(targets, dino(x.double(), 0.04, 3).float(), rtol=0, atol=2e-5)


def megatron(logits, tolerance=1e-4):
    """(what Megatron-core's loop returns, its iterations)."""
    cost, count, error = logits.exp(), 0, float("inf")
    columns = torch.ones_like(cost[0])
    while error > tolerance:
        rows = 1 / cost.size(0) / ((columns * cost).sum(1) + 1e-8)
        before, columns = columns, 1 / cost.size(1) / ((rows.unsqueeze(1) * cost).sum(0) + 1e-8)
        error = (before - columns).abs().mean()
        count += 1
    return columns * cost * rows.unsqueeze(1), count


@pytest.mark.parametrize(("scale", "most"), [(0.02, 2), (1, 4), (3, 12), (8, 40)])
@pytest.mark.parametrize("experts", [8, 64])
def test_a_router_needs_as_many_iterations(scale, most, experts):
    """The same scores after the same iterations, within its eps, which an entry of 1e-8 feels."""
    x = scale * randn(1024, experts, dtype=FLOAT64)
    true, count = megatron(x)
    assert count <= most
    scores = sinkhorn_router(x, count)
    assert (scores - true).abs().max() <= 2e-6 * true.abs().max()
    if count > 1:
        early = sinkhorn_router(x, 1)
        assert (early - true).abs().max() > (scores - true).abs().max()


def test_a_router_reads_narrow_logits():
    x = randn(300, 16, dtype=torch.bfloat16)
    torch.testing.assert_close(sinkhorn_router(x), sinkhorn(x.float(), 8, form="log") / 16, rtol=0, atol=0)
