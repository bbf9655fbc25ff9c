"""hc_site on a CPU: its defaults, any use of its residual, and what its kernels leave to the parts."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal
from hc_sites import site_inputs
from launches import SITES, kernels_on_cpu

from helion_sinkhorn import hc_post, hc_site, reference
from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.site import api, crossing, torch_op


def test_options_have_the_defaults_of_the_models():
    """The tests' own equations take their defaults from this record."""
    assert SiteOptions() == (20, 1e-6, 1e-6, 2.0, None, 0.0, "io", "float32", False, 1e-6, "deepseek")


def test_residual_is_x_itself():
    """No copy: the same memory, with and without a gradient to come."""
    (x, *parameters), _ = site_inputs(5)
    for leaf in (x, x.clone().requires_grad_()):
        assert hc_site(leaf, *parameters).residual.data_ptr() == leaf.data_ptr()


def expanded_by_hand(f, x, post, comb):
    """Another implementation of the new streams."""
    return post.unsqueeze(-1) * f.unsqueeze(-2) + comb.mT @ x


USES = {
    "hc_post": lambda f, x, s: hc_post(f, s.residual, s.post, s.comb),
    "another expand": lambda f, x, s: expanded_by_hand(f, s.residual, s.post, s.comb),
    "twice": lambda f, x, s: hc_post(f, s.residual, s.post, s.comb) * s.residual,
    "x in its place": lambda f, x, s: hc_post(f, x, s.post, s.comb),
    "not at all": lambda f, x, s: (
        s.post.unsqueeze(-1) * f.unsqueeze(-2) + s.comb.sum((-2, -1))[..., None, None]
    ),
}
"""How a layer makes its new streams of the sublayer's output, its streams and the site."""


@pytest.mark.parametrize("by", ["kernels", "parts"])
@pytest.mark.parametrize("use", USES)
def test_any_use_of_the_residual_has_the_right_gradient(use, by, monkeypatch):
    if by == "kernels":
        kernels_on_cpu(monkeypatch, SITES)
    inputs, (upstream, *_) = site_inputs(6, n=2, c=5)

    def differentiated(site, wide, use):
        leaves = [t.to(wide).requires_grad_() for t in inputs]
        results = api.Site(*site(*leaves))
        streams = use(results.y.tanh(), leaves[0], results)
        return torch.autograd.grad(streams, leaves, upstream.to(wide))

    gradients = differentiated(hc_site, torch.float32, USES[use])
    with monkeypatch.context() as exactly:
        exactly.setitem(globals(), "hc_post", reference.hc_post)
        expected = differentiated(reference.hc_site, torch.float64, USES[use])
    for a, b in zip(gradients, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


BEYOND = {
    "one stream": ({"n": 1}, {}),
    "more iterations than the kernels'": ({}, {"sinkhorn_iters": 65}),
    "a norm_eps that squares cannot hold": ({}, {"norm_eps": 1.2e-38}),
    "float64": ({"dtype": torch.float64}, {}),
}


@pytest.mark.parametrize("case", BEYOND)
def test_what_the_kernels_do_not_take_goes_to_the_parts(case, monkeypatch):
    sizes, options = BEYOND[case]
    inputs, _ = site_inputs(3, **sizes)
    expected = hc_site(*inputs, **options)

    def never(*_):
        raise AssertionError(f"{case} went to the kernels")

    monkeypatch.setattr(torch_op, "run", never)
    if case != "float64":
        monkeypatch.setattr(crossing, "implementation_for", lambda *asked: "helion")
    assert_equal(hc_site(*inputs, **options), expected)
