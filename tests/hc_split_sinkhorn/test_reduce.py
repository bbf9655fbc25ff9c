"""hc_split_sinkhorn of a projection's partial sums: `reduce=`, on a CPU."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import Reduce, hc_split_sinkhorn, reference

OPERATOR = torch.ops.helion_sinkhorn.hc_split_sinkhorn_reduced.default
BACKWARD = torch.ops.helion_sinkhorn.hc_split_sinkhorn_backward.default
CONSTANTS = 4, 20, 1e-6, 2.0, 1e-6, 0.0, "io", "pytorch"
SIZE, NORM_EPS = 64, 1e-2
VALUE, GRADIENT = 1e-6, 2e-6
"""Limits in float32, of the largest entry: twice the largest error of a value, 1.4 times that of a sum."""


def inputs(*lead, splits=5, n=4, seed=0, dtype=torch.float32):
    """(partials, squares, scale, base, dpre, dpost, dcomb)."""
    columns = n * n + 2 * n
    return (
        randn(splits, *lead, columns, seed=seed, dtype=dtype),
        SIZE / splits * randn(splits, *lead, seed=seed + 1, dtype=dtype).square(),
        torch.tensor([0.7, 1.1, 0.9], dtype=dtype),
        *(
            randn(*shape, seed=seed + k, dtype=dtype)
            for k, shape in enumerate(((columns,), (*lead, n), (*lead, n), (*lead, n, n)), 2)
        ),
    )


def run(partials, squares, scale, base, f=hc_split_sinkhorn, eps_outside=False, **options):
    return f(partials, scale, base, reduce=Reduce(squares, SIZE, NORM_EPS, eps_outside), **options)


def results(*tensors, **options):
    """The three results and the gradients of partials, squares, scale and base."""
    return values_and_gradients(run, tensors[:4], tensors[4:], **options)


def exact(*tensors, **options):
    return results(*[t.double() for t in tensors], f=reference.hc_split_sinkhorn, **options)


def assert_right(found, truth):
    for k, (y, t) in enumerate(zip(found, truth, strict=True)):
        assert y.shape == t.shape
        assert (y.double() - t).abs().max() <= (VALUE if k < 3 else GRADIENT) * t.abs().max(), k


@pytest.mark.parametrize("eps_outside", [False, True])
@pytest.mark.parametrize(("n", "splits"), [(4, 1), (4, 8), (3, 5), (1, 2), (16, 2)])
def test_values_and_gradients_against_float64(n, splits, eps_outside):
    tensors = inputs(3, 17, n=n, splits=splits)
    options = {"hc_mult": n, "sinkhorn_iters": 5, "eps_outside": eps_outside}
    found = results(*tensors, **options)
    assert_right(found, exact(*tensors, **options))
    dpartials, dsquares = found[3:5]
    assert dpartials.stride(0) == dsquares.stride(0) == 0 or splits == 1
    # each of the five is what it is for its own sake
    assert all(t.abs().max() > 1e-4 for t in found)


@pytest.mark.parametrize("eps_outside", [False, True])
def test_every_gradient_of_the_operator_by_finite_differences(eps_outside):
    """This includes the mixes and the norms that it returns."""
    tensors = [t.requires_grad_() for t in inputs(2, n=2, splits=3, dtype=torch.float64)[:4]]
    constants = 2, 3, 1e-3, 2.0, 1e-3, 0.0, "io", "pytorch", torch.float64
    torch.autograd.gradcheck(lambda *t: OPERATOR(*t, SIZE, 0.1, eps_outside, *constants), tensors)


def test_gradients_of_the_operators_results_add_up():
    """A loss of the coefficients and of the mixes and norms too."""
    leaves = [t.requires_grad_() for t in inputs(3, splits=2, dtype=torch.float64)[:4]]
    out = OPERATOR(*leaves, SIZE, 0.1, True, *CONSTANTS, torch.float64)
    upstream = [randn(*y.shape, seed=9 + k, dtype=torch.float64) for k, y in enumerate(out)]
    found = torch.autograd.grad(out, leaves, upstream, retain_graph=True)
    each = [
        torch.autograd.grad(y, leaves, g, retain_graph=True, allow_unused=True, materialize_grads=True)
        for y, g in zip(out, upstream, strict=True)
    ]
    for y, terms in zip(found, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(y, sum(terms), rtol=1e-11, atol=1e-13)


def test_it_is_the_sum_in_the_order_of_the_splits():
    partials, squares, scale, base, *_ = inputs(40)
    partials = partials * 0.1 ** torch.arange(5).view(-1, 1, 1)
    total, mean = functools.reduce(torch.add, partials), functools.reduce(torch.add, squares)
    r = 1 / ((mean + SIZE * NORM_EPS) / SIZE).sqrt()
    expected = hc_split_sinkhorn(r.unsqueeze(-1) * total, scale, base)
    assert_equal(run(partials, squares, scale, base), expected)
    backwards = run(partials.flip(0), squares, scale, base)
    assert not torch.equal(backwards[0], expected[0])


def test_the_operator_leaves_what_the_backward_of_the_mixes_takes():
    partials, squares, scale, base, *upstream = inputs(3, 7)
    *_, mixes, norms = OPERATOR(
        partials, squares, scale, base, SIZE, NORM_EPS, False, *CONSTANTS, torch.float32
    )
    assert (mixes.shape, norms.shape) == ((3, 7, 24), (3, 7, 2))
    dmixes, sums = BACKWARD(*upstream, mixes, scale, base, *CONSTANTS, [True, True])
    *_, dpartials, dsquares, dscale, dbase = results(partials, squares, scale, base, *upstream)
    r, k = norms.double().unbind(-1)
    for found in dpartials:
        torch.testing.assert_close(found.double(), r.unsqueeze(-1) * dmixes.double(), rtol=1e-6, atol=0.0)
    terms = dmixes.double() * mixes.double()
    limit = 1e-6 * (k * terms.abs().sum(-1)).abs()
    for found in dsquares:
        assert ((found - k / 2 * terms.sum(-1)).abs() <= limit).all()
    assert_equal((dscale, dbase), (sums[24:], sums[:24]))


def test_dtypes():
    partials, squares, scale, base, *upstream = inputs(30)
    given = partials, squares, scale.bfloat16(), base.half(), *upstream
    found = results(*given)
    assert [t.dtype for t in found] == [torch.float32] * 5 + [torch.bfloat16, torch.float16]
    assert_right(found[:5], exact(*given)[:5])
    wide = results(*[t.double() for t in inputs(30)])
    assert {t.dtype for t in wide} == {torch.float64}
    for y, t in zip(wide, exact(*inputs(30)), strict=True):
        torch.testing.assert_close(y, t, rtol=1e-11, atol=1e-13)


def test_rows_that_vanish():
    """norm_eps of DeepSeek-V4.1, 1e-20: r is 1e10, and the mixes and all gradients are finite."""
    partials, squares, scale, base, *upstream = inputs(6)
    partials[:, 2], squares[:, 2] = 0.0, 0.0
    for eps_outside in (False, True):
        leaves = [t.detach().requires_grad_() for t in (partials, squares, scale, base)]
        out = hc_split_sinkhorn(leaves[0], *leaves[2:], reduce=Reduce(leaves[1], SIZE, 1e-20, eps_outside))
        gradients = torch.autograd.grad(out, leaves, upstream)
        assert all(t.isfinite().all() for t in (*out, *gradients))
        assert_equal([t[2] for t in out], [t for t in hc_split_sinkhorn(partials[0, 2], scale, base)])
        assert gradients[0][:, 2].abs().max() > 1e6


P, Q, SCALE, BASE = torch.zeros(2, 3, 24), torch.zeros(2, 3), torch.ones(3), torch.zeros(24)
EPS = "pass 0 or a float of at least 1e-37, finite"
REFUSED = {
    "a tensor": (P, Q, TypeError, "reduce is a Tensor; pass helion_sinkhorn.Reduce"),
    "a tuple": (P, (Q, 64), TypeError,
                r"reduce is a tuple; pass helion_sinkhorn.Reduce\(squares, size\) or None"),
    "mixes of one token": (P[0, 0], Reduce(Q[0], 64), ValueError,
                           r"mixes has shape \(24,\); with reduce pass .* \(splits, ..., 24\) with"),
    "no splits": (P[:0], Reduce(Q[:0], 64), ValueError,
                  r"mixes has shape \(0, 3, 24\); .* with at least one split"),
    "half precision": (P.half(), Reduce(Q.half(), 64), TypeError,
                       "mixes has dtype torch.float16; with reduce pass partial sums in torch.float32 or"),
    "squares are a number": (P, Reduce(1.0, 64), TypeError,
                             r"reduce.squares is a float; .* shape \(splits, ...\)"),
    "squares of another dtype": (P, Reduce(Q.double(), 64), TypeError,
                                 "reduce.squares has dtype torch.float64, mixes torch.float32; convert one"),
    "squares elsewhere": (P, Reduce(Q.to("meta"), 64), ValueError, "reduce.squares is on meta, mixes on cpu"),
    "squares of the sum": (P, Reduce(Q[0], 64), ValueError,
                           r"reduce.squares has shape \(3,\); for partial sums of shape \(2, 3, 24\) pass"),
    "squares with a column": (P, Reduce(Q[..., None], 64), ValueError,
                              r"shape \(2, 3, 1\); .* pass \(2, 3\)"),
    "size is a float": (P, Reduce(Q, 64.0), TypeError,
                        "reduce.size is 64.0; pass an int of at least 1, the number of entries of a token"),
    "size is a bool": (P, Reduce(Q, True), TypeError, "reduce.size is True; pass an int of at least 1, the"),
    "size is 0": (P, Reduce(Q, 0), ValueError, "reduce.size is 0; pass an int of at least 1, the number"),
    "norm_eps is None": (P, Reduce(Q, 64, None), TypeError, f"reduce.norm_eps is None; {EPS}"),
    "norm_eps is negative": (P, Reduce(Q, 64, -1e-6), ValueError, f"reduce.norm_eps is -1e-06; {EPS}"),
    "norm_eps is tiny": (P, Reduce(Q, 64, 1e-38), ValueError, f"reduce.norm_eps is 1e-38; {EPS}"),
    "norm_eps is infinite": (P, Reduce(Q, 64, math.inf), ValueError, f"reduce.norm_eps is inf; {EPS}"),
    "norm_eps is nan": (P, Reduce(Q, 64, math.nan), ValueError, f"reduce.norm_eps is nan; {EPS}"),
    "eps_outside is a number": (P, Reduce(Q, 64, 1e-6, 1), TypeError,
                                "reduce.eps_outside is 1; pass True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("partials", "reduce", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(partials, reduce, kind, said):
    with pytest.raises(kind, match=said):
        hc_split_sinkhorn(partials, SCALE, BASE, reduce=reduce)
