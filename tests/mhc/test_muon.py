"""Muon's step of many projections in one batch."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn import nn
from helion_sinkhorn.mhc import muon
from helion_sinkhorn.mhc.muon import orthogonalized


def exact(m: torch.Tensor, steps: int) -> torch.Tensor:
    """By the singular values, in float64."""
    u, s, v = torch.linalg.svd(m.double(), full_matrices=False)
    s = s / s.square().sum().sqrt()
    a, b, c = muon.QUINTIC
    for _ in range(steps):
        s = a * s + b * s**3 + c * s**5
    return u * s @ v


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("steps", [1, 5])
def test_each_matrix_is_that_of_its_singular_values(dtype, steps):
    """Shapes are mixed, and results are in the order given."""
    shapes = (24, 48), (4, 48), (24, 48), (48, 24), (24, 48)
    momenta = [randn(*shape, seed=k, scale=10.0**k, dtype=dtype) for k, shape in enumerate(shapes)]
    matrices = orthogonalized(momenta, steps)
    assert [(y.shape, y.dtype) for y in matrices] == [(m.shape, dtype) for m in momenta]
    # a step multiplies an error by up to 3.4445, and adds 48 products' own
    limit = 3.4445**steps * 48 * (2.0**-53 if dtype == torch.float64 else 2.0**-24)
    for y, m in zip(matrices, momenta, strict=True):
        rounding = torch.finfo(dtype).eps / 2 * exact(m, steps).abs()
        assert ((y.double() - exact(m, steps)).abs() <= limit + rounding).all()
    if steps == 5 and dtype == torch.float64:
        values = torch.cat([torch.linalg.svdvals(y) for y in matrices])
        assert 0.65 < values.min() < values.max() < 1.25


def test_one_batch_for_each_shape(monkeypatch):
    batches, run = [], muon._newton_schulz
    monkeypatch.setattr(
        muon, "_newton_schulz", lambda x, steps: (batches.append(tuple(x.shape)), run(x, steps))[1]
    )
    sites = [nn.HyperConnection(8) for _ in range(5)]
    orthogonalized([site.fn for site in sites] + [nn.HyperHead(8).hc_fn])
    assert batches == [(5, 24, 32), (1, 4, 32)]


def test_zeros_stay_zeros_and_what_is_no_matrix_is_refused():
    (zero,) = orthogonalized([torch.zeros(3, 5)])
    assert torch.equal(zero, torch.zeros(3, 5))
    assert orthogonalized([]) == []
    with pytest.raises(ValueError, match=r"momenta\[1\] has shape \(3,\); pass \(rows, columns\)"):
        orthogonalized([torch.zeros(3, 5), torch.zeros(3)])
    with pytest.raises(TypeError, match=r"momenta\[0\] is a NoneType; pass a torch\.Tensor"):
        orthogonalized([None])
    with pytest.raises(ValueError, match="steps is 0; pass an int of at least 1"):
        orthogonalized([torch.zeros(3, 5)], 0)
