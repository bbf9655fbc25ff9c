"""hc_boundary and nn.HyperBoundary on a CPU: DeepSeek-V4.1's order of collapses, and V4's."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import hc_boundary, nn, reference


@pytest.mark.parametrize("weights", [True, False])
def test_the_specification_is_the_boundary_in_float64(weights):
    n, c = 3, 8
    x, f, bias = randn(7, n, c).double(), randn(7, c, seed=1).double(), randn(c, seed=2).double()
    post, comb, pre = (randn(7, *s, seed=3 + k).double() for k, s in enumerate(((n,), (n, n), (n,))))
    fn, scale, base, weight = randn(15, n * c, seed=6), torch.ones(3), randn(15, seed=7), randn(n * c, seed=8)
    parameters = [t.double() for t in (fn, scale, base)]
    options = {"post_mult": 1.0, "pre_eps": 0.5, "post_eps": 0.25, "eps_outside": True, "comb_order": "oi"}

    def made(function):
        def call(f, x, post, comb, *rest):
            return function(f, x, post, comb, pre if weights else None, *rest, 3, 1e-3, 0.1, weight.double(),
                            bias=bias, **options)  # fmt: skip

        upstream = [
            randn(7, *s, seed=9 + k).double() for k, s in enumerate(((c,), (n,), (n,), (n, n), (n, c)))
        ]
        return values_and_gradients(call, (f, x, post, comb, *parameters), upstream)

    torch.testing.assert_close(made(hc_boundary), made(reference.hc_boundary), rtol=1e-12, atol=1e-12)


def test_wrong_weights_are_refused():
    given = randn(5, 6), randn(5, 4, 6), randn(5, 4), randn(5, 4, 4)
    parameters = randn(24, 24), torch.ones(3), torch.zeros(24)
    with pytest.raises(ValueError, match=r"pre_next has shape \(4, 4\); for these streams pass \(5, 4\)"):
        hc_boundary(*given, randn(4, 4), *parameters)
    with pytest.raises(ValueError, match=r"pre_next has shape \(5, 4, 1\); .*: convert with .squeeze\(-1\)"):
        hc_boundary(*given, randn(5, 4, 1), *parameters)


def test_what_is_wrong_is_named_and_not_the_module_s_projection():
    f, x, post, comb = randn(3, 5, 8), randn(3, 5, 4, 8), randn(3, 5, 4), randn(3, 5, 4, 4)
    parameters = randn(24, 32), torch.ones(3), torch.zeros(24)
    swapped = r"f has shape \(3, 5, 4, 8\); .* pass \(\.\.\., C\), \(3, 8\): f comes first, then the streams"
    with pytest.raises(ValueError, match=swapped):
        nn.HyperBoundary(8)(x, f, post, comb)
    with pytest.raises(ValueError, match=swapped):
        hc_boundary(x, f, post, comb, None, *parameters)
    with pytest.raises(ValueError, match=r"streams has shape \(3, 5, 4, 8\); pass \(\.\.\., 4, 16\)"):
        nn.HyperBoundary(16)(f, x, post, comb)
    with pytest.raises(ValueError, match=r"streams has shape \(3, 5, 4, 8\); pass \(\.\.\., 2, 8\)"):
        nn.HyperBoundary(8, 2)(f, x, post, comb)
    with pytest.raises(ValueError, match=r"post has shape \(3, 5, 5\)"):
        nn.HyperBoundary(8)(f, x, randn(3, 5, 5), comb)
    with pytest.raises(TypeError, match=r"no enter; .* boundary\(f, streams, post, comb, pre\).* hc_coeffs"):
        nn.HyperBoundary(8).enter(x)


def test_the_module_is_the_function_with_its_parameters():
    torch.manual_seed(0)
    boundary, connection = nn.HyperBoundary(12, 4, 5), nn.HyperConnection(12, 4, 5)
    connection.load_state_dict(boundary.state_dict())
    x, f = randn(2, 5, 4, 12), randn(2, 5, 12, seed=1)
    post, comb, pre = randn(2, 5, 4, seed=2), randn(2, 5, 4, 4, seed=3), randn(2, 5, 4, seed=4)
    expected = hc_boundary(f, x, post, comb, pre, boundary.fn, boundary.scale, boundary.base, 5)
    assert_equal(boundary(f, x, post, comb, pre), expected)
    own = boundary(f, x, post, comb)
    assert_equal((own.post, own.comb, own.y), connection(own.residual))
