"""The gradient of a bias is summed before df is rounded, whatever the dtypes."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn import hc_post
from helion_sinkhorn.ops.hc_post import launch, torch_op
from helion_sinkhorn.ops.hc_site.boundary import torch_op as boundary
from helion_sinkhorn.ops.hc_site.boundary.backward import launch as boundary_launch

TOKENS, N, C = 64, 4, 32
CONSTANTS = 2, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False
MOST = 2.0
"""Times the error of the sum in float32, rounded once."""


def drawn(dtype, bias_dtype):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    f, x, grad = (normal(*s).to(dtype) for s in ((TOKENS, C), (TOKENS, N, C), (TOKENS, N, C)))
    post, comb = torch.rand(TOKENS, N, generator=generator) * 2, normal(TOKENS, N, N)
    return f, x, post, comb, normal(C).to(bias_dtype), grad


def check(found, post, grad):
    """The root mean square of the errors beside that of float32 sums."""
    exact = torch.einsum("to,toc->c", post.double(), grad.double())
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
    check(dbias, post, grad)


@pytest.mark.parametrize(("dtype", "bias_dtype"), DTYPES)
@pytest.mark.parametrize("path", ["streams alone", "in one pass"])
def test_hc_boundary(path, dtype, bias_dtype, monkeypatch):
    """By its own operator's gradient; of the pass over the streams only new streams have an upstream one."""
    pytest.importorskip("triton", reason="the bodies import Triton")
    f, x, post, comb, bias, grad = drawn(dtype, bias_dtype)
    fn = torch.zeros(N * (N + 2), N * C)
    site = torch.rand(TOKENS, N), fn, torch.ones(3), torch.zeros(N * (N + 2))

    class Context:
        saved_tensors = f, x, post, comb, bias, *site, x, torch.zeros(TOKENS, len(fn)), torch.ones(TOKENS)
        constants = CONSTANTS
        needs_input_grad = (True,) * (9 + len(CONSTANTS))

    def one_pass(*given):
        upstream, kept, values = given[:5], given[5:17], given[17:]
        tensors = *kept[:4], *kept[5:]
        return boundary_launch.in_one_pass(upstream, tensors, kept[4], *values)

    monkeypatch.setattr(boundary, "call_backward", one_pass)
    monkeypatch.setattr(boundary.of_post, "call_backward", lambda *given: launch.backward(*given[:-1]))
    dy = None if path == "streams alone" else torch.zeros(TOKENS, C, dtype=dtype)
    with torch.no_grad():
        df, _, _, _, dbias, *_ = boundary._gradient(Context(), grad, dy, None, None, None)
    assert df.dtype == dtype
    check(dbias, post, grad)
