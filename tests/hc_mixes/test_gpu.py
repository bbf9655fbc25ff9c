"""hc_mixes on a CUDA or ROCm device, against float64 on the CPU."""

from __future__ import annotations

import mhc_equations as equations
import pytest
import torch
from autograd_calls import randn
from mhc_equations import assert_within, truth_and_budget, values_and_gradients

from helion_sinkhorn import hc_mixes
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload

pytestmark = pytest.mark.gpu

DEVICE = "cuda"


def workload(**options):
    return MixesWorkload("asked", 1, frozenset(), "a test", **options)


def inputs_of(row):
    """x, fn and dmixes of one element on the device."""
    x, fn, _, dmixes = (t if t is None else t.to(DEVICE) for t in row.make_inputs())
    return x[0], fn, dmixes[0]


def results(x, fn, dmixes, **options):
    """(mixes, dx, dfn) of the kernels."""
    leaves = [t.detach().clone().requires_grad_() for t in (x, fn)]
    mixes = hc_mixes(*leaves, implementation="helion", **options)
    return [mixes.detach(), *torch.autograd.grad(mixes, leaves, dmixes)]


def equal(found, expected):
    return all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_shapes_do_not_matter():
    x, fn, dmixes = inputs_of(workload(c=72, tokens=100))
    expected = results(x, fn, dmixes)
    merged = results(x.flatten(-2), fn, dmixes)
    assert equal([merged[0], merged[1].view_as(x), merged[2]], expected)
    lead = results(x.view(2, 50, 4, 72), fn, dmixes.view(2, 50, 24))
    assert equal([t.view_as(e) for t, e in zip(lead, expected, strict=True)], expected)


def test_fn_in_bfloat16_is_computed_with_in_float32():
    x, fn, dmixes = inputs_of(workload(c=72, tokens=100))
    narrow = fn.bfloat16()
    mixes, dx, dfn = results(x, narrow.float(), dmixes)
    assert equal(results(x, narrow, dmixes), [mixes, dx, dfn.bfloat16()])


def test_a_norm_weight():
    x, fn, dmixes = inputs_of(workload(c=72, tokens=100))
    weight = torch.linspace(0.5, 1.5, 288, device=DEVICE)
    leaves = [t.clone().requires_grad_() for t in (x, fn, weight)]
    mixes = hc_mixes(leaves[0], leaves[1], 1e-6, leaves[2], implementation="helion")
    dx, dfn, dweight = torch.autograd.grad(mixes, leaves, dmixes)
    expected = results(x, fn * weight, dmixes)
    assert equal([mixes, dx, dfn], [*expected[:2], expected[2] * weight])
    torch.testing.assert_close(dweight, (expected[2] * fn).sum(0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_product_and_mean_square_apart(dtype):
    tensors = randn(100, 4, 1000, dtype=dtype), randn(24, 4000, seed=1, scale=0.2)
    upstream = [randn(100, 24, seed=2), randn(100, seed=3)]
    truth, budget = truth_and_budget(equations.prenorm, tensors, upstream)

    def prenorm(x, fn):
        return hc_mixes(x, fn, prenorm=True, implementation="helion")

    on_gpu = [[t.to(DEVICE) for t in of] for of in (tensors, upstream)]
    assert_within([t.cpu() for t in values_and_gradients(prenorm, *on_gpu)], truth, budget)
