"""hc_mixes with prenorm: the product and the mean square apart, by PyTorch and by the kernels' bodies."""

from __future__ import annotations

import mhc_equations as equations
import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from launches import kernels_on_cpu
from mhc_equations import assert_within, truth_and_budget

from helion_sinkhorn import Reduce, hc_mixes, hc_split_sinkhorn
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK

MADE_BY = "pytorch", "kernels"
USED = {"both": (True, True), "product": (True, False), "mean square": (False, True)}


def prenorm(x, fn):
    return hc_mixes(x, fn, prenorm=True)


def problem(*lead, n=4, c=12, m=24, dtype=torch.float32, scale=1.0):
    x = randn(*lead, n, c, dtype=dtype, scale=scale)
    return (x, randn(m, n * c, seed=1, scale=0.2)), [randn(*lead, m, seed=2), randn(*lead, seed=3)]


@pytest.fixture(params=MADE_BY)
def made_by(request, monkeypatch):
    if request.param == "kernels":
        kernels_on_cpu(monkeypatch)
    return request.param


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ({}, torch.bfloat16),
        ({"n": 3, "c": 7, "m": 1}, torch.float16),
        ({"n": 2, "c": CHUNK // 2 + 9, "m": 8}, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("made_by", [*MADE_BY, pytest.param("gpu", marks=pytest.mark.gpu)], indirect=True)
@pytest.mark.parametrize("used", USED)
def test_against_float64(used, sizes, dtype, made_by):
    """Gradients of streams are rounded once; sums are over one chunk of columns or more."""
    tensors, upstream = problem(2, 3, **sizes, dtype=dtype)
    upstream = [g if taken else None for g, taken in zip(upstream, USED[used], strict=True)]
    equation, function = equations.prenorm, prenorm
    if used == "mean square":
        # which fn has no part in
        fn, tensors = tensors[1], tensors[:1]
        equation = lambda x, at=equations.exactly: equations.prenorm(x, fn.double(), at)  # noqa: E731
        function = lambda x: prenorm(x, fn.to(x.device))  # noqa: E731
    truth, budget = truth_and_budget(equation, tensors, upstream)
    device = "cuda" if made_by == "gpu" else "cpu"
    there = [[None if t is None else t.to(device) for t in of] for of in (tensors, upstream)]
    found = [t.cpu() for t in values_and_gradients(function, *there)]
    assert [t.dtype for t in found] == [torch.float32] * 2 + [dtype, torch.float32][: len(found) - 2]
    assert_within(found, truth, budget)


@pytest.mark.parametrize("scale", [1.0, 1e-15, 1e15])
@pytest.mark.parametrize("eps_outside", [False, True])
def test_the_norm_makes_mixes_of_them(scale, eps_outside, made_by):
    (x, fn), _ = problem(7, scale=scale)
    z, q = prenorm(x, fn)
    r = 1 / (q.sqrt() + 1e-6) if eps_outside else (q + 1e-6).rsqrt()
    expected = hc_mixes(x, fn, eps_outside=eps_outside)
    # r has three roundings here, and a function of 2 units at most
    torch.testing.assert_close(z * r.unsqueeze(-1), expected, rtol=6 * 2**-24, atol=0)


def test_they_are_partial_sums_for_the_split():
    (x, fn), _ = problem(7)
    scale, base = torch.tensor([0.7, 1.1, 0.9]), randn(24, seed=5)

    def apart(x, fn):
        z, q = hc_mixes(x, fn, prenorm=True)
        return hc_split_sinkhorn(z[None], scale, base, reduce=Reduce(q[None], 1))

    def together(x, fn):
        return hc_split_sinkhorn(hc_mixes(x, fn), scale, base)

    given = [x.double(), fn.double()], [randn(7, *s, seed=6).double() for s in ((4,), (4,), (4, 4))]
    found, expected = (values_and_gradients(function, *given) for function in (apart, together))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_parts_of_the_entries_add_up():
    """As ranks that hold some columns of each stream have them."""
    (x, fn), _ = problem(7)
    x, fn = x.double(), fn.double()
    halves = [
        hc_mixes(x[..., part], fn.unflatten(-1, (4, 12))[..., part].flatten(-2), prenorm=True)
        for part in (slice(5), slice(5, None))
    ]
    z, q = hc_mixes(x, fn, prenorm=True)
    torch.testing.assert_close(halves[0].product + halves[1].product, z, rtol=1e-12, atol=1e-12)
    summed = halves[0].mean_square * 5 / 12 + halves[1].mean_square * 7 / 12
    torch.testing.assert_close(summed, q, rtol=1e-12, atol=0)


def test_no_eps_has_a_part_in_them(made_by):
    (x, fn), upstream = problem(5)
    expected = values_and_gradients(prenorm, (x, fn), upstream)
    others = {"norm_eps": 0.3, "eps_outside": True}
    found = values_and_gradients(lambda *t: hc_mixes(*t, prenorm=True, **others), (x, fn), upstream)
    assert_equal(found, expected)


def test_a_token_of_zeros_has_a_gradient_of_its_product_alone(made_by):
    (x, fn), upstream = problem(3)
    x[1] = 0
    z, q, dx, _ = values_and_gradients(prenorm, (x, fn), upstream)
    assert not z[1].any()
    assert not q[1]
    torch.testing.assert_close(dx[1].flatten(), upstream[0][1] @ fn)


def test_what_is_no_flag_is_refused():
    (x, fn), _ = problem(3)
    with pytest.raises(TypeError, match="prenorm is 'both'; pass True or False"):
        hc_mixes(x, fn, prenorm="both")
