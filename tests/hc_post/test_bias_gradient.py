"""The gradient of a bias is summed before df is rounded, whatever the dtypes."""

from __future__ import annotations

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


def check(dbias, post, grad):
    """Compares the root mean square error with a float32 sum's; `grad` is the gradient of the new streams."""
    exact = torch.einsum("to,toc->c", post.double(), grad)
    once = torch.einsum("to,toc->tc", post, grad.float()).sum(0).to(dbias.dtype)
    own, allowed = ((x.double() - exact).norm() for x in (dbias, once))
    assert own <= MOST * allowed, (own, allowed)


DTYPES = [
    (dtype, bias)
    for dtype in (torch.bfloat16, torch.float16, torch.float32)
    for bias in (torch.float32, torch.bfloat16, torch.float16)
]
KERNELS = "streams alone", "in one pass", "in parts", "with weights of its own"
FN, SCALE, BASE = torch.zeros(N * (N + 2), N * C), torch.ones(3), torch.zeros(N * (N + 2))


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES, ids=str)
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


def crossed(weights, f, x, post, comb, bias):
    """The results that have upstream gradients; fn is 0, so that weights of its own are all the same."""
    results = hc_boundary(f, x, post, comb, weights, FN, SCALE, BASE, 2, bias=bias)
    return results.residual, results.y


@pytest.mark.parametrize(
    ("dtype", "bias_dtype", "path"),
    [
        *((*dtypes, path) for path in (*KERNELS, "called") for dtypes in DTYPES),
        *((torch.bfloat16, torch.float32, path) for path in ("compiled", "mapped", "torch.func")),
    ],
    ids=str,
)
def test_hc_boundary(dtype, bias_dtype, path, monkeypatch):
    """By its kernels, or by the operators that it is made of, as a CPU and DTensors have it."""
    if path in KERNELS:
        kernels_on_cpu(monkeypatch)
        monkeypatch.setattr(boundary_ways, "is_faster", lambda call, x, first: path == "in one pass")
    f, x, post, comb, bias, grad = drawn(dtype, bias_dtype)
    weights, dy, call = randn(TOKENS, N, seed=8), randn(TOKENS, C, seed=7, dtype=dtype), crossed
    given = weights, f.requires_grad_(), x, post, comb, bias.requires_grad_()
    if "own" in path:
        weights, given = torch.full((TOKENS, N), 0.5 + 1e-6), (None, *given[1:])
    if path == "compiled":
        call = torch.compile(call, backend="aot_eager", fullgraph=True)
    if path == "mapped":
        # of one token each: the sum over all is autograd's
        call = torch.vmap(call, in_dims=(0, 0, 0, 0, 0, None))
    used = slice(1 if path == "streams alone" else 2)
    if path == "torch.func":
        _, df, *_, dbias = torch.func.vjp(call, *given)[1]((grad, dy))
    else:
        results = call(*given)
        assert (results[0].grad_fn.name() == "HcBoundaryBackward") == (path in KERNELS)
        df, dbias = torch.autograd.grad(results[used], (f, bias), (grad, dy)[used])
    assert df.dtype == dtype
    of_y = weights.double().unsqueeze(2) * dy.double().unsqueeze(1)
    check(dbias, post, grad.double() + (0 if path == "streams alone" else of_y))


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


def test_what_is_made_of_the_gradient_of_a_bias_alone_is_differentiated():
    """That gradient depends on nothing that needs one, so no second derivative is asked of the kernel."""
    *given, bias, upstream = drawn(torch.float32, torch.float32)
    leaf, factor = bias.requires_grad_(), torch.ones_like(bias, requires_grad=True)
    (dbias,) = torch.autograd.grad(hc_post(*given, leaf), leaf, upstream, create_graph=True)
    (dbias * factor).sum().backward()
    assert torch.equal(factor.grad, dbias)
