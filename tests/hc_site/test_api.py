"""hc_site on a CPU, by its parts: values and gradients against float64, the contract, errors."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn
from hc_sites import site_inputs, site_results
from hypothesis import given
from hypothesis import strategies as st
from interpreted import FEWER
from launches import SITES, kernels_on_cpu

from helion_sinkhorn import hc_coeffs, hc_mixes, hc_post, hc_pre, hc_site, hc_split_sinkhorn, reference
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.site import api, crossing, torch_op


def test_it_is_its_three_operators():
    (x, fn, scale, base), _ = site_inputs(5, dtype=torch.bfloat16)
    weight = 1 + randn(48, seed=9, scale=0.2)
    gates = {"post_mult": 1.5, "pre_eps": 1e-2, "post_eps": 1e-3, "comb_order": "oi"}
    given = x, fn, scale, base, 5, 1e-3, 0.1, weight
    y, post, comb, _ = hc_site(*given, **gates, eps_outside=True)
    mixes = hc_mixes(x, fn, 0.1, weight, eps_outside=True)
    pre, *rest = hc_split_sinkhorn(mixes, scale, base, 4, 5, 1e-3, **gates)
    assert_equal((y, post, comb), (hc_pre(x, pre), *rest))
    assert_equal(hc_coeffs(*given, **gates, eps_outside=True), (pre, *rest))


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

    def gradients(site, wide, use):
        leaves = [t.to(wide).requires_grad_() for t in inputs]
        found = api.Site(*site(*leaves))
        streams = use(found.y.tanh(), leaves[0], found)
        return torch.autograd.grad(streams, leaves, upstream.to(wide))

    found = gradients(hc_site, torch.float32, USES[use])
    with monkeypatch.context() as exactly:
        exactly.setitem(globals(), "hc_post", reference.hc_post)
        expected = gradients(reference.hc_site, torch.float64, USES[use])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=2e-5, atol=2e-5)


@FEWER
@given(
    st.integers(1, 6), st.integers(1, 20), st.lists(st.integers(0, 4), max_size=2),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.integers(0, 99),
)  # fmt: skip
def test_any_call_has_its_shapes_and_agrees_with_float64(n, c, lead, dtype, seed):
    inputs, upstream = site_inputs(*lead, n=n, c=c, dtype=dtype, seed=seed)
    found = site_results(inputs, upstream, sinkhorn_iters=3)
    wide = [t.double() for t in inputs], [t.double() for t in upstream]
    expected = site_results(*wide, f=reference.hc_site, sinkhorn_iters=3)
    for name in RESULTS:
        a, b = found[name], expected[name]
        assert a.shape == b.shape
        size = b.abs().max().item() if b.numel() else 0.0
        unit = 4 * torch.finfo(a.dtype).eps if name in ("y", "dx") else 2e-5
        torch.testing.assert_close(a.double(), b, rtol=0, atol=max(unit, 2e-5) * size + 1e-30)


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
