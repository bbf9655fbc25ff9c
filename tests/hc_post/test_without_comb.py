"""hc_post without comb, out = x + post f: against float64, the contract, and how it is called."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import hc_boundary, hc_expand, hc_post, recompute_streams
from helion_sinkhorn.mhc import recompute

UNIT = 2.0**-24
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def inputs(*lead, n=4, c=12, dtype=torch.float32, other=None):
    """(f, x, post, bias)"""
    f, x = randn(*lead, c, dtype=other or dtype), randn(*lead, n, c, seed=1, dtype=dtype)
    return f, x, randn(*lead, n, seed=2), randn(c, seed=3)


def added(f, x, post, bias=None):
    return hc_post(f, x, post, None, bias)


@pytest.mark.parametrize("other", DTYPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "c"), [(4, 12), (1, 1)])
def test_one_rounding_of_each_result(n, c, dtype, other):
    """Within half a unit of the result's dtype, and a unit of float32 for each operation on its terms."""
    given = f, x, post, bias = inputs(2, 5, n=n, c=c, dtype=dtype, other=other)
    grad = randn(2, 5, n, c, seed=4, dtype=dtype)
    found = values_and_gradients(lambda *t: (added(*t),), given, [grad])
    assert [t.dtype for t in found] == [dtype, other, dtype, torch.float32, torch.float32]
    f, x, post, bias, g = (t.double() for t in (*given, grad))
    weighted, products = post[..., None] * g, g * (f + bias)[..., None, :]
    truth = (
        x + post[..., None] * (f + bias)[..., None, :],
        weighted.sum(-2),
        g,
        products.sum(-1),
        weighted.sum((0, 1, 2)),
    )
    sizes = (
        x.abs() + post.abs()[..., None] * (f.abs() + bias.abs())[..., None, :], weighted.abs().sum(-2), 0 * g,
        (g.abs() * (f.abs() + bias.abs())[..., None, :]).sum(-1), weighted.abs().sum((0, 1, 2)),
    )  # fmt: skip
    operations = 4, n, 0, c + 2, 10 * n
    unit = 2.0**-53 if dtype == torch.float64 else UNIT
    for y, t, size, count in zip(found, truth, sizes, operations, strict=True):
        # subnormals of float16 have units of their own
        limit = (
            torch.finfo(y.dtype).eps / 2 * t.abs() + count * unit * size + torch.finfo(y.dtype).tiny * UNIT
        )
        limit = limit + (2.0**-25 if y.dtype == torch.float16 else 0.0)
        assert ((y.double() - t).abs() <= limit).all()


def test_its_results_are_no_memory_of_the_streams():
    f, x, post, _ = inputs(2, 5)
    before = x.clone()
    hc_post(torch.zeros_like(f), x, post, None).add_(1)
    assert torch.equal(x, before)


def test_the_second_derivative():
    f, x, post, bias = (t.requires_grad_() for t in inputs(2, c=3, dtype=torch.float64))
    post, bias = post.detach().double().requires_grad_(), bias.detach().double().requires_grad_()
    assert torch.autograd.gradgradcheck(added, (f, x, post, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_streams_that_are_made_again_change_no_bit(dtype, monkeypatch):
    weight, made = randn(12, 12, dtype=dtype).requires_grad_(), []
    h, post = randn(2, 5, 12, seed=1, dtype=dtype), randn(2, 5, 4, seed=2)

    def model():
        streams = hc_expand(h, 4)
        for _ in range(4):
            f = (streams * streams).sum(-2).tanh() @ weight
            streams = hc_post(f, streams, post, None)
        return torch.autograd.grad(streams.float().square().sum(), weight)

    expected = model()
    make = recompute._Remade.make
    monkeypatch.setattr(recompute._Remade, "make", lambda remade: made.append(remade) or make(remade))
    with recompute_streams(every=3):
        found = model()
    assert made
    assert_equal(found, expected)


def test_refused_with_what_to_do():
    f, x, post, _ = inputs(2)
    with pytest.raises(NotImplementedError, match="implementation='helion': the kernels run on CUDA"):
        hc_post(f, x, post, None, implementation="helion")
    with pytest.raises(ValueError, match=r"post has shape \(2, 3\)"):
        hc_post(f, x, post[:, :3], None)
    with pytest.raises(TypeError, match="post is a NoneType"):
        hc_post(f, x, None, None)
    with pytest.raises(TypeError, match=r"comb is a NoneType; pass a torch\.Tensor of shape"):
        hc_boundary(f, x, post, None, None, randn(24, 48), torch.ones(3), torch.zeros(24))
