"""hc_split_sinkhorn of a projection's partial sums: `reduce=`, on a CPU."""

from __future__ import annotations

import functools

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import Reduce, hc_split_sinkhorn

OPERATOR = torch.ops.helion_sinkhorn.hc_split_sinkhorn_reduced.default
SIZE, NORM_EPS = 64, 1e-2


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


def run(partials, squares, scale, base):
    return hc_split_sinkhorn(partials, scale, base, reduce=Reduce(squares, SIZE, NORM_EPS))


def results(*tensors):
    """The three results and the gradients of partials, squares, scale and base."""
    return values_and_gradients(run, tensors[:4], tensors[4:])


@pytest.mark.parametrize("eps_outside", [False, True])
def test_every_gradient_of_the_operator_by_finite_differences(eps_outside):
    """This includes the mixes and the norms that it returns."""
    tensors = [t.requires_grad_() for t in inputs(2, n=2, splits=3, dtype=torch.float64)[:4]]
    constants = 2, 3, 1e-3, 2.0, 1e-3, 0.0, "io", "pytorch", torch.float64
    torch.autograd.gradcheck(lambda *t: OPERATOR(*t, SIZE, 0.1, eps_outside, *constants), tensors)


def test_it_is_the_sum_in_the_order_of_the_splits():
    partials, squares, scale, base, *_ = inputs(40)
    partials = partials * 0.1 ** torch.arange(5).view(-1, 1, 1)
    total, mean = functools.reduce(torch.add, partials), functools.reduce(torch.add, squares)
    r = 1 / ((mean + SIZE * NORM_EPS) / SIZE).sqrt()
    expected = hc_split_sinkhorn(r.unsqueeze(-1) * total, scale, base)
    assert_equal(run(partials, squares, scale, base), expected)
    backwards = run(partials.flip(0), squares, scale, base)
    assert not torch.equal(backwards[0], expected[0])


def test_dtypes_of_parameters():
    """They are widened and computed with, and their gradients are rounded once."""
    partials, squares, scale, base, *upstream = inputs(30)
    rounded = results(partials, squares, scale.bfloat16(), base.half(), *upstream)
    *same, dscale, dbase = results(
        partials, squares, scale.bfloat16().float(), base.half().float(), *upstream
    )
    assert_equal(rounded, [*same, dscale.bfloat16(), dbase.half()])


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
    "size is a float": (P, Reduce(Q, 64.0), TypeError,
                        "reduce.size is 64.0; pass an int of at least 1, the number of entries of a token"),
    "size is 0": (P, Reduce(Q, 0), ValueError, "reduce.size is 0; pass an int of at least 1, the number"),
    "norm_eps is negative": (P, Reduce(Q, 64, -1e-6), ValueError, f"reduce.norm_eps is -1e-06; {EPS}"),
    "norm_eps is tiny": (P, Reduce(Q, 64, 1e-38), ValueError, f"reduce.norm_eps is 1e-38; {EPS}"),
    "eps_outside is a number": (P, Reduce(Q, 64, 1e-6, 1), TypeError,
                                "reduce.eps_outside is 1; pass True or False"),
}  # fmt: skip


@pytest.mark.parametrize(("partials", "reduce", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(partials, reduce, kind, said):
    with pytest.raises(kind, match=said):
        hc_split_sinkhorn(partials, SCALE, BASE, reduce=reduce)
