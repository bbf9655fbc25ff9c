"""Gradients are linear in the upstream one: 2^k times it gives 2^k times the result, to the bit."""

from __future__ import annotations

import functools

import pytest
import torch
from autograd_calls import randn
from steep import STEEP

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.ops.mhc.split import eager as hc_eager
from helion_sinkhorn.ops.mhc.split import launch as hc_launch
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.sinkhorn import eager, launch
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit_eager
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.runtime.kernel import default_choice

EXPONENTS = (-100, -66, 66, 100)
CALLS = [("slopes", 4, 20), ("slopes", 8, 16), ("slopes", 8, 20), ("slopes", 16, 20), ("transport", 16, 50)]
"""With and without a restart of the log form."""


def check_scale(gradient, dy: torch.Tensor) -> None:
    """gradient(2^k dy) is 2^k gradient(dy): the bits where both are normal numbers, 2^-149 elsewhere."""
    plain = gradient(dy).double()
    assert plain.isfinite().all()
    assert plain.abs().amax() > 1e-3
    for k in EXPONENTS:
        scaled = gradient(dy * 2.0**k).double() * 2.0**-k
        normal = plain.abs() >= 2.0 ** (-126 - k)
        assert torch.equal(scaled[normal], plain[normal]), k
        assert (scaled - plain).abs().amax() <= 2.0 ** (-149 - k), k


@pytest.mark.parametrize(
    ("path", "kind", "n", "n_iters"),
    [
        *(("sinkhorn_backward", *call) for call in CALLS if call[1] <= 8),
        *(("sinkhorn_backward_history", *call) for call in CALLS if call[1] >= 8),
        *(("the CPU path", *call) for call in CALLS),
    ],
)
def test_exact_gradients_of_steep_logits(path, kind, n, n_iters):
    x = STEEP[kind](n)[::4]
    arguments = n_iters, 0.0, "log", "rows"
    backward = eager.backward
    if path in KERNELS:
        choice = default_choice(KERNELS[path], launch.call_of(x, *arguments), DEVICES["h200"])
        backward = functools.partial(launch.backward, choice=choice)
    check_scale(lambda dy: backward(dy, x, *arguments), randn(*x.shape, seed=1))


@pytest.mark.parametrize("backward", [hc_launch.backward, hc_eager.backward], ids=["kernel", "the CPU path"])
def test_hc_split_sinkhorn_without_eps(backward):
    """Logits c i j among the mixes; the sums over tokens pass through the largest matrix and are left out."""
    n, x = 4, STEEP["slopes"](4)[::4].flatten(1)
    mixes, scale, base = torch.cat([randn(len(x), 8, seed=0), x], 1), torch.ones(3), torch.zeros(24)
    gates, options = randn(2, len(x), n, seed=2), SplitOptions(n, 20, 0.0, 2.0, 0.0, 0.0, "io")

    def gradient(dcomb):
        upstream = CoefficientGradients(*gates, dcomb)
        return backward(upstream, mixes, scale, base, options)[0][:, 2 * n :]

    check_scale(gradient, randn(len(x), n, n, seed=1))


@pytest.mark.parametrize("system", ["corrected", "reduced", "full"])
@pytest.mark.parametrize("solver", ["cg", "direct"])
@pytest.mark.parametrize("path", ["kernel", "the CPU path"])
def test_implicit_gradients(path, solver, system):
    p = eager.forward(randn(16, 8, 8, seed=0), 20, 0.0, "log", "rows", torch.float32)
    backward = implicit_launch.implicit_backward if path == "kernel" else implicit_eager.backward
    check_scale(lambda dy: backward(dy, p, 20, system, solver, torch.float32), randn(*p.shape, seed=1))
