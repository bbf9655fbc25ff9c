"""hc_post without comb, out = x + post f: against float64, the contract, and how it is called."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn, values_and_gradients

from helion_sinkhorn import hc_boundary, hc_post

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
    given = inputs(2, 5, n=n, c=c, dtype=dtype, other=other)
    grad = randn(2, 5, n, c, seed=4, dtype=dtype)
    results = values_and_gradients(lambda *t: (added(*t),), given, [grad])
    assert [t.dtype for t in results] == [dtype, other, dtype, torch.float32, torch.float32]

    def exact(f, x, post, bias, g):
        post, f = post.unsqueeze(-1), (f + bias).unsqueeze(-2)
        return x + post * f, (post * g).sum(-2), g, (g * f).sum(-1), (post * g).sum((0, 1, 2))

    wide = [t.double() for t in (*given, grad)]
    truth, sizes = exact(*wide), exact(*(t.abs() for t in wide))
    operations = 4, n, 0, c + 2, 10 * n
    unit = 2.0**-53 if dtype == torch.float64 else UNIT
    for y, t, size, count in zip(results, truth, sizes, operations, strict=True):
        limit = torch.finfo(y.dtype).eps / 2 * t.abs() + count * unit * size
        # subnormals of float16 have units of their own
        limit += 2.0**-25 if y.dtype == torch.float16 else torch.finfo(y.dtype).tiny * UNIT
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
