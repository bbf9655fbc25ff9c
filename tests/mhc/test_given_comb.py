"""Sites whose comb is another map than Sinkhorn's: the published ones, each a small function of logits."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from autograd_calls import randn, values_and_gradients

from helion_sinkhorn import hc_boundary, hc_post, hc_site
from helion_sinkhorn.reference import hc_mixes


def permutations(logits, n):
    """A convex sum of all permutations (mHC-lite): n! logits."""
    each = torch.eye(n, dtype=logits.dtype)[torch.tensor(list(itertools.permutations(range(n))))]
    return torch.einsum("...k,kio->...io", logits.softmax(-1), each)


def kronecker(logits, n):
    """A Kronecker product of doubly stochastic 2 x 2 matrices (KromHC): log2 n logits."""
    comb = logits.new_ones(*logits.shape[:-1], 1, 1)
    for a in logits.sigmoid().unbind(-1):
        factor = torch.stack([torch.stack([a, 1 - a], -1), torch.stack([1 - a, a], -1)], -2)
        comb = torch.einsum("...io,...pq->...ipoq", comb, factor).flatten(-4, -3).flatten(-2)
    return comb


def orthostochastic(logits, n):
    """The squares of an orthogonal matrix, by Cayley's transform of a skew one (go-mHC): n (n - 1) / 2."""
    i, j = torch.triu_indices(n, n, 1)
    upper = (
        logits.new_zeros(*logits.shape[:-1], n * n).index_copy(-1, i * n + j, logits).unflatten(-1, (n, n))
    )
    skew, one = upper - upper.mT, torch.eye(n, dtype=logits.dtype)
    return torch.linalg.solve(one + skew, one - skew).square()


def signed(logits, n):
    """Rows of either sign whose absolute values add up to at most 1 (sHC): n^2."""
    rows = logits.unflatten(-1, (n, n))
    return rows / rows.abs().sum(-1, keepdim=True).clamp(min=1)


VARIANTS = {
    "permutations": (permutations, 4, 24), "kronecker": (kronecker, 8, 3), "kronecker16": (kronecker, 16, 4),
    "orthostochastic": (orthostochastic, 5, 10), "signed": (signed, 3, 9),
}  # fmt: skip


def problem(n, k, c=12):
    """(f, x, post, comb, fn, scale, base), and upstream gradients of y, post, comb and the new streams."""
    m = 2 * n + k
    fn, scale = randn(m, n * c, scale=(n * c) ** -0.5), 1 + randn(3, seed=1, scale=0.2)
    sizes = (c,), (n, c), (n,), (n, n)
    update = [randn(5, *size, seed=2 + k) for k, size in enumerate(sizes)]
    upstream = [randn(5, *size, seed=6 + k) for k, size in enumerate(((c,), (n,), (n, n), (n, c)))]
    return (*update, fn, scale, randn(m, seed=10)), upstream


def defined(x, fn, scale, base, make):
    """The equations of the site, in the dtype of its arguments."""
    n = x.size(-2)
    mixes = hc_mixes(x.flatten(-2), fn, 1e-6)
    pre, post, logits = mixes.split((n, n, mixes.size(-1) - 2 * n), -1)
    of = [
        t * s + b
        for t, s, b in zip((pre, post, logits), scale, base.split((n, n, len(base) - 2 * n)), strict=True)
    ]
    pre, post, comb = of[0].sigmoid() + 1e-6, 2 * of[1].sigmoid(), make(of[2])
    return (pre.unsqueeze(-1) * x).sum(-2), pre, post, comb


def assert_near(results, truth, tolerance=2e-5):
    for a, b in zip(results, truth, strict=True):
        assert (a.double() - b).abs().max() <= tolerance * b.abs().max(), (a.double() - b).abs().max()


def assert_equations(function, equation, given, upstream):
    """All values and gradients agree with the equations in float64."""
    wide = [[t.double() for t in of] for of in (given, upstream)]
    assert_near(values_and_gradients(function, given, upstream), values_and_gradients(equation, *wide))


@pytest.mark.parametrize(("function", "n", "k"), VARIANTS.values(), ids=VARIANTS)
def test_a_site_with_another_map(function, n, k):
    (_, x, _, _, *parameters), upstream = problem(n, k)
    make = functools.partial(function, n=n)

    def updated(site):
        y, post, comb, residual = site
        return y, post, comb, hc_post(y.tanh(), residual, post, comb)

    def exact(x, *site):
        y, _, *coefficients = defined(x, *site, make)
        return updated((y, *coefficients, x))

    assert_equations(lambda *given: updated(hc_site(*given, comb=make)), exact, (x, *parameters), upstream)


@pytest.mark.parametrize("weights", [False, True], ids=["V4", "V4.1"])
@pytest.mark.parametrize(("function", "n", "k"), VARIANTS.values(), ids=VARIANTS)
def test_a_boundary_with_another_map(function, n, k, weights):
    given, upstream = problem(n, k)
    chosen, make = given[2].sigmoid() if weights else None, functools.partial(function, n=n)

    def crossed(f, x, post, comb, *site):
        made = hc_boundary(f, x, post, comb, chosen, *site, comb_next=make)
        return made.y, made.post, made.comb, made.residual

    def exact(f, x, post, comb, *site):
        streams = post.unsqueeze(-1) * f.unsqueeze(-2) + comb.mT @ x
        y, _, *coefficients = defined(streams, *site, make)
        return (
            y if chosen is None else (chosen.double().unsqueeze(-1) * streams).sum(-2),
            *coefficients,
            streams,
        )

    assert_equations(crossed, exact, given, upstream)


@pytest.mark.parametrize("order", ["io", "oi"])
def test_a_tensor_is_taken_as_it_is_and_has_a_gradient(order):
    (_, x, _, comb, *parameters), upstream = problem(4, 0)
    leaf = comb.clone().requires_grad_()
    made = hc_site(x, *parameters, comb=leaf, comb_order=order)
    assert torch.equal(made.comb, comb)
    out = hc_post(made.y, made.residual, made.post, made.comb, comb_order=order)
    (gradient,) = torch.autograd.grad(out, leaf, upstream[3])
    exact = x.double() @ upstream[3].double().mT
    assert_near([gradient], [exact if order == "io" else exact.mT])


def test_narrow_streams_and_a_norm():
    """Coefficients are float32 for bfloat16 streams; y is after its norm."""
    (_, x, _, _, *parameters), _ = problem(4, 24)
    weight = torch.linspace(0.5, 1.5, 12)
    site = hc_site(
        x.bfloat16(), *parameters, comb=lambda logits: permutations(logits, 4), y_norm_weight=weight
    )
    y, _, post, comb = defined(
        x.bfloat16().double(), *(t.double() for t in parameters), lambda a: permutations(a, 4)
    )
    y = y.bfloat16().double()
    y = y * (y.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weight.double()
    assert (site.y.dtype, site.comb.dtype) == (torch.bfloat16, torch.float32)
    assert_near([site.post, site.comb], [post, comb])
    assert_near([site.y], [y], 2**-7)


def test_what_does_not_fit():
    (_, x, _, comb, fn, scale, base), _ = problem(4, 24)
    with pytest.raises(ValueError, match=r"fn has shape \(32, 48\).*pass \(8, 48\) with a tensor comb"):
        hc_site(x, fn, scale, base, comb=comb)
    with pytest.raises(ValueError, match="base has shape"):
        hc_site(x, fn, scale, base[:-1], comb=lambda logits: logits)
    with pytest.raises(ValueError, match=r"what comb returned has shape \(5, 24\)"):
        hc_site(x, fn, scale, base, comb=lambda logits: logits)
    with pytest.raises(TypeError, match="what comb returned"):
        hc_site(x, fn, scale, base, comb=lambda logits: None)
    with pytest.raises(TypeError, match="comb is 3"):
        hc_site(x, fn, scale, base, comb=3)
    with pytest.raises(ValueError, match=r"comb has shape \(5, 4, 3\)"):
        hc_site(x, fn[:8], scale, base[:8], comb=comb[..., :3])
