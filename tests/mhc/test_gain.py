"""The gain of comb of every site of a model."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn import hc_coeffs, hc_expand, nn
from helion_sinkhorn.mhc.gain import watching_gain


@pytest.mark.parametrize("order", ["io", "oi"])
@pytest.mark.parametrize("delayed", [False, True])
def test_the_gain_is_the_largest_row_sum(order, delayed):
    layers = torch.nn.ModuleList(
        nn.HyperSublayer(
            torch.nn.Linear(12, 12), 12, sinkhorn_iters=2, comb_order=order, delayed_pre=delayed,
            initializer_range=1.0,
        )
        for _ in range(2)
    )  # fmt: skip
    x = hc_expand(randn(7, 12), 4) + randn(7, 4, 12, seed=1)
    with watching_gain(layers) as gains:
        layers[1](layers[0](x))
    assert list(gains) == ["0.connection", "1.connection"]
    site = layers[0].connection
    comb = hc_coeffs(x, site.fn, site.scale, site.base, 2)[2].detach()
    torch.testing.assert_close(gains["0.connection"], comb.sum(-1).max(), rtol=1e-6, atol=0)
    # two iterations leave the rows far from 1, and not the columns
    assert gains["0.connection"] > 1.1
    assert (comb.sum(-2) - 1).abs().max() < 1e-4
    kept = dict(gains)
    layers[0](x * 2)
    assert all(torch.equal(gains[name], value) for name, value in kept.items())


def test_a_model_without_sites_is_refused():
    said = "no submodule of Linear is a HyperConnection or a HyperBoundary"
    with pytest.raises(ValueError, match=said), watching_gain(torch.nn.Linear(2, 2)):
        pass
