"""Sites whose comb is of the log form, or is its logits: hc_site, hc_boundary and their modules."""

from __future__ import annotations

import mhc_equations as equations
import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from launches import SITES, kernels_on_cpu
from mhc_equations import assert_equations

from helion_sinkhorn import (
    hc_boundary,
    hc_coeffs,
    hc_mixes,
    hc_post,
    hc_pre,
    hc_site,
    hc_split_sinkhorn,
    nn,
)

FORMS = {
    "log": {"sinkhorn_iters": 7, "form": "log"},
    "logits": {"sinkhorn_iters": 0},
    "logits, log": {"sinkhorn_iters": 0, "form": "log"},
}
EVERY = {"deepseek": {"sinkhorn_iters": 7}, **FORMS}
NARROW = (torch.bfloat16, torch.float16)
OTHERS = {
    "post_mult": 1.0, "pre_eps": 0.5, "post_eps": 0.25, "eps_outside": True, "norm_eps": 0.1, "eps": 1e-3,
}  # fmt: skip
each_form = pytest.mark.parametrize("form", FORMS)


def inputs(n=4, c=12, dtype=torch.float32, spread=1.0):
    """(x, fn, scale, base), and upstream gradients of y, post, comb and the residual."""
    rows = n * n + 2 * n
    tensors = (
        randn(2, 3, n, c, dtype=dtype), randn(rows, n * c, seed=1, scale=0.2),
        spread * torch.tensor([0.7, 1.1, 0.9]), spread * randn(rows, seed=2),
    )  # fmt: skip
    shapes = ((c,), dtype), ((n,), torch.float32), ((n, n), torch.float32), ((n, c), dtype)
    return tensors, [randn(2, 3, *shape, seed=3 + k, dtype=kind) for k, (shape, kind) in enumerate(shapes)]


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
# of steep logits most of comb is near 0 or 1
@pytest.mark.parametrize(("n", "spread"), [(4, 1.0), (4, 12.0), (1, 1.0), (3, 4.0), (16, 1.0)])
@pytest.mark.parametrize("form", EVERY)
def test_a_site_against_float64(form, n, spread, dtype):
    tensors, upstream = inputs(n, dtype=dtype, spread=spread)

    def specification(x, fn, scale, base, at=equations.exactly):
        pre, post, comb = equations.coefficients(x, fn, scale, base, at=at, **EVERY[form])
        return equations.collapse(x, pre, at), post, comb, at(x)

    # the gradients of three uses of the streams meet
    assert_equations(lambda *t: hc_site(*t, **EVERY[form]), specification, tensors, upstream, rounded=3)


@pytest.mark.parametrize("form", EVERY)
def test_a_site_is_its_three_operators(form):
    (x, fn, scale, base), _ = inputs(dtype=torch.bfloat16)
    norm, weight = {"norm_eps": 0.1, "eps_outside": True}, 1 + randn(48, seed=9, scale=0.2)
    gates = {"post_mult": 1.5, "pre_eps": 0.25, "post_eps": 1e-3, "comb_order": "oi", **EVERY[form]}
    y, post, comb, residual = hc_site(x, fn, scale, base, norm_weight=weight, **norm, **gates)
    mixes = hc_mixes(x, fn, norm_weight=weight, **norm)
    pre, *rest = hc_split_sinkhorn(mixes, scale, base, 4, **gates)
    assert_equal((y, post, comb), (hc_pre(x, pre), *rest))
    assert_equal(hc_coeffs(x, fn, scale, base, norm_weight=weight, **norm, **gates), (pre, *rest))
    assert residual is x


@pytest.mark.parametrize("delayed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [*FORMS.values(), {}, OTHERS], ids=str)
def test_a_boundary_has_the_bits_of_an_update_and_a_site(options, dtype, delayed):
    """With a bias that needs no gradient: one that does keeps that of f from being rounded."""
    (x, *site), upstream = inputs(dtype=dtype)
    update = randn(2, 3, 12, seed=8, dtype=dtype), randn(2, 3, 4, seed=9), randn(2, 3, 4, 4, seed=10)
    bias, weights = randn(12, seed=11), randn(2, 3, 4, seed=12) if delayed else None

    def crossed(f, x, post, comb, *site):
        y, _, post, comb, residual = hc_boundary(f, x, post, comb, weights, *site, bias=bias, **options)
        return y, post, comb, residual

    def by_hand(f, x, post, comb, *site):
        x = hc_post(f, x, post, comb, bias)
        if weights is None:
            return hc_site(x, *site, **options)
        _, post, comb = hc_coeffs(x, *site, **options)
        return (weights.unsqueeze(-1) * x.float()).sum(-2).to(x.dtype), post, comb, x

    given = [update[0], x, *update[1:], *site]
    values, expected = (values_and_gradients(function, given, upstream) for function in (crossed, by_hand))
    if delayed:
        torch.testing.assert_close(values, expected, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-4)
    else:
        assert_equal(values, expected)


@each_form
def test_kernels_of_a_site_are_for_the_form_that_they_have(form, monkeypatch):
    """On a GPU the operator of the site would make a comb of the other form."""
    tensors, upstream = inputs()
    expected = values_and_gradients(lambda *t: hc_site(*t, **FORMS[form]), tensors, upstream)
    kernels_on_cpu(monkeypatch, SITES)
    results = values_and_gradients(lambda *t: hc_site(*t, **FORMS[form]), tensors, upstream)
    assert_equal(results, expected)


@pytest.mark.parametrize("kind", [nn.HyperConnection, nn.HyperBoundary])
@each_form
def test_modules_have_the_forms(form, kind):
    torch.manual_seed(0)
    module, x = kind(12, **FORMS[form], initializer_range=0.2), inputs()[0][0]
    parameters = module.fn, module.scale, module.base
    if kind is nn.HyperBoundary:
        y, _, *rest = module(None, x)
    else:
        y, *rest = module.enter(x)
    assert_equal([y, *rest], list(hc_site(x, *parameters, **FORMS[form])))
    for made in (module, nn.HyperSublayer(torch.nn.Identity(), 12, **FORMS[form]).connection):
        assert f"form={FORMS[form].get('form', 'deepseek')!r}" in repr(made)


def test_forms_that_there_are_not_are_refused():
    x, *site = inputs()[0]
    for call in (lambda: hc_site(x, *site, form="exp"), lambda: nn.HyperConnection(12, form="exp")):
        with pytest.raises(ValueError, match="form is 'exp'; use one of 'deepseek', 'log'"):
            call()
    with pytest.raises(ValueError, match="sinkhorn_iters is -1; pass an int"):
        hc_boundary(x[..., 0, :], x, x[..., 0], x @ x.mT, None, *site, sinkhorn_iters=-1)
