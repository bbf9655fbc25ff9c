"""The gradient of a bias is summed before df is rounded, whatever the dtypes."""

from __future__ import annotations

import functools

import pytest
import torch
from autograd_calls import randn
from hc_streams import post_inputs
from launches import kernels_on_cpu

from helion_sinkhorn import hc_boundary, hc_post
from helion_sinkhorn.ops.mhc.post import launch, torch_op
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways as boundary_ways

TOKENS, N, C = 64, 4, 32
MOST = 2.0
"""Times the error of the sum in float32, rounded once."""


def drawn(dtype, bias_dtype):
    """(f, x, post, comb, bias, grad)."""
    *given, bias, grad = post_inputs(TOKENS, n=N, c=C, dtype=dtype)
    return *given, bias.to(bias_dtype), grad


def check(found, post, grad):
    """Compares the root mean square error with a float32 sum's; `grad` is the gradient of the new streams."""
    exact = torch.einsum("to,toc->c", post.double(), grad)
    once = torch.einsum("to,toc->tc", post, grad.float()).sum(0).to(found.dtype)
    own, allowed = ((x.double() - exact).norm() for x in (found, once))
    assert own <= MOST * allowed, (own, allowed)


DTYPES = [
    pytest.param(dtype, bias, id=f"{dtype} {bias}")
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for bias in (torch.float32, torch.bfloat16, torch.float16)
]


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES)
@pytest.mark.parametrize("path", ["pytorch", "helion"])
def test_hc_post(path, dtype, bias_dtype, monkeypatch):
    if path == "helion":
        pytest.importorskip("triton", reason="the bodies import Triton")
        monkeypatch.setattr(torch_op.eager, "backward", launch.backward)
    f, x, post, comb, bias, grad = drawn(dtype, bias_dtype)
    leaves = f.requires_grad_(), bias.requires_grad_()
    df, dbias = torch.autograd.grad(hc_post(f, x, post, comb, bias), leaves, grad)
    assert df.dtype == dtype
    check(dbias, post, grad.double())


def site_inputs(dtype):
    """(weights, fn, scale, base) of coefficients without gradients, and the upstream gradient of y."""
    rows, dy = N * (N + 2), randn(TOKENS, C, seed=7, dtype=dtype)
    return (randn(TOKENS, N, seed=8), torch.zeros(rows, N * C), torch.ones(3), torch.zeros(rows)), dy


def of_streams(grad, weights, dy):
    """The gradient of the new streams, of what is added to them and of their collapse."""
    return grad.double() + weights.double().unsqueeze(2) * dy.double().unsqueeze(1)


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES)
@pytest.mark.parametrize("path", ["streams alone", "in one pass", "in parts", "with weights of its own"])
def test_hc_boundary(path, dtype, bias_dtype, monkeypatch):
    """By its kernels; of coefficients none has an upstream gradient, and fn is 0."""
    kernels_on_cpu(monkeypatch)
    monkeypatch.setattr(boundary_ways, "is_faster", lambda call, x, first: path == "in one pass")
    *given, grad = drawn(dtype, bias_dtype)
    f, bias = (given[k].requires_grad_() for k in (0, 4))
    (weights, *site), dy = site_inputs(dtype)
    made = hc_boundary(*given[:4], None if "own" in path else weights, *site, 2, bias=bias)
    assert made.residual.grad_fn.name() == "HcBoundaryBackward"
    collapse = made.pre.detach() if "own" in path else weights
    if path == "streams alone":
        df, dbias = torch.autograd.grad(made.residual, (f, bias), grad)
        expected = grad.double()
    else:
        df, dbias = torch.autograd.grad((made.residual, made.y), (f, bias), (grad, dy))
        expected = of_streams(grad, collapse, dy)
    assert df.dtype == dtype
    check(dbias, given[2], expected)


def run(site, f, x, post, comb, bias):
    """The results that have upstream gradients, by the operators that hc_boundary is made of."""
    found = hc_boundary(f, x, post, comb, *site, 2, bias=bias)
    return found.residual, found.y


@pytest.mark.parametrize(
    ("dtype", "bias_dtype", "way"),
    [
        *[pytest.param(*case.values, "called", id=case.id) for case in DTYPES],
        *[(torch.bfloat16, torch.float32, way) for way in ("compiled", "mapped", "torch.func")],
    ],
    ids=str,
)
def test_hc_boundary_of_its_parts(dtype, bias_dtype, way):
    """As a CPU and DTensors have it."""
    *given, grad = drawn(dtype, bias_dtype)
    site, dy = site_inputs(dtype)
    call, upstream = functools.partial(run, site), (grad, dy)
    if way == "compiled":
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    if way == "mapped":
        # of one token each: the sum over all is autograd's
        mapped = torch.vmap(run, in_dims=((0, None, None, None), 0, 0, 0, 0, None))
        call = functools.partial(mapped, site)
    if way == "torch.func":
        dbias = torch.func.vjp(call, *given)[1](upstream)[-1]
    else:
        bias = given[-1].requires_grad_()
        (dbias,) = torch.autograd.grad(call(*given), bias, upstream)
    check(dbias, given[2], of_streams(grad, site[0], dy))


def test_no_sum_over_tokens_for_a_bias_that_needs_no_gradient():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sums(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten.sum.dim_IntList
            return func(*args, **(kwargs or {}))

    for needed in (True, False):
        *given, bias, grad = post_inputs(3, c=16)
        out = hc_post(*[t.requires_grad_() for t in given], bias.requires_grad_(needed))
        with Sums() as sums:
            out.backward(grad)
        assert sums.count == needed
