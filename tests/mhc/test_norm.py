"""Sites with the RMSNorm of a module of its own as a part of their collapse."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn

from helion_sinkhorn import hc_site, nn

N, C = 3, 24


class LlamaRMSNorm(torch.nn.Module):
    """A norm as transformers writes it."""

    def __init__(self, eps):
        super().__init__()
        self.weight = torch.nn.Parameter(1 + randn(C, seed=5, scale=0.2))
        self.variance_epsilon = eps

    def forward(self, x):
        raise AssertionError("called")


@pytest.fixture
def site():
    made = nn.HyperConnection(C, N)
    torch.nn.init.normal_(made.fn, generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_module_is_the_weight_and_eps_of_hc_site(site, dtype):
    x, norm = randn(2, 5, N, C, dtype=dtype).requires_grad_(), LlamaRMSNorm(1e-4)
    entered = site.enter(x, y_norm=norm)
    expected = hc_site(x, site.fn, site.scale, site.base, y_norm_weight=norm.weight, y_norm_eps=1e-4)
    assert_equal(entered, expected)
    leaves = [x, *site.parameters(), norm.weight]
    upstream = [randn(*t.shape, seed=k, dtype=t.dtype) for k, t in enumerate(expected)]
    assert_equal(*(torch.autograd.grad(results, leaves, upstream) for results in (entered, expected)))


def test_norms_of_torch(site):
    streams = randn(2, 5, N, C)
    y = site.enter(streams).y
    kinds = {"eps": 1e-2}, {}, {"elementwise_affine": False}
    for norm in (torch.nn.RMSNorm(C, **options) for options in kinds):
        torch.testing.assert_close(site.enter(streams, y_norm=norm).y, norm(y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_without_an_eps_it_is_that_of_torch(dtype):
    """For inputs this small twice the unit roundoff of a narrow dtype would be most of the mean square."""
    site, norm = nn.HyperConnection(C, N).to(dtype), torch.nn.RMSNorm(C).to(dtype)
    streams = randn(2, 5, N, C, dtype=dtype) * 1e-2
    y = site.enter(streams).y
    torch.testing.assert_close(site.enter(streams, y_norm=norm).y, norm(y), rtol=2e-2, atol=1e-3)


@pytest.mark.parametrize("lead", [(), (0,), (2, 0)], ids=str)
def test_without_a_weight_for_any_number_of_tokens(lead):
    norm = torch.nn.RMSNorm(C, eps=1e-6, elementwise_affine=False)
    y = nn.HyperConnection(C, N).enter(randn(*lead, N, C), y_norm=norm).y
    assert y.shape == (*lead, C)


@pytest.mark.parametrize(
    ("norm", "error", "said"),
    [
        (torch.nn.Identity(), TypeError, "y_norm is .*Identity.*; pass an RMSNorm: a torch.nn.Module with"),
        (torch.ones(C), TypeError, "y_norm is .*Tensor"),
        (torch.nn.LayerNorm(C), TypeError, "y_norm is .*LayerNorm.*; pass an RMSNorm"),
        (torch.nn.RMSNorm(C + 1), ValueError, "y_norm_weight has shape"),
        (torch.nn.RMSNorm(C, eps=0.0), ValueError, "y_norm.eps is 0.0"),
    ],
)
def test_errors(norm, error, said):
    with pytest.raises(error, match=said):
        nn.HyperConnection(C, N).enter(randn(2, N, C), y_norm=norm)
