"""hc_pre, hc_site and hc_boundary with the RMSNorm of what they collapse."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn, values_and_gradients
from launches import kernels_on_cpu

from helion_sinkhorn import hc_boundary, hc_pre, hc_site, reference
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.ops.mhc.pre.normed import space
from helion_sinkhorn.ops.mhc.pre.space import PreCall

UNIT = 2.0**-8
"""The relative distance of neighbouring bfloat16 numbers, at most."""


def inputs(*lead, n=4, c=96, dtype=torch.float32, seed=0):
    """(x, pre, weight, du)."""
    return (
        randn(*lead, n, c, seed=seed, dtype=dtype), randn(*lead, n, seed=seed + 1).sigmoid(),
        1 + randn(c, seed=seed + 2, scale=0.3), randn(*lead, c, seed=seed + 3, dtype=dtype),
    )  # fmt: skip


def results(run, x, pre, weight, du, eps=1e-6):
    """(u, dx, dpre, dweight)."""
    return values_and_gradients(
        lambda x, pre, w: run(x, pre, y_norm_weight=w, y_norm_eps=eps), (x, pre, weight), [du]
    )


def truth(x, pre, weight, du, eps=1e-6):
    """Results in float64 from y rounded to the dtype of x; the rounding passes gradients unchanged.

    Each comes with the size that its errors are relative to: its own entries, or for dpre, whose sum may
    cancel, the stream and dy.
    """
    leaves = [t.detach().double().requires_grad_() for t in (x, pre, weight)]
    y = reference.hc_pre(*leaves[:2])
    rounded = y + (y.detach().to(x.dtype).double() - y.detach())
    u = leaves[2] * rounded / (rounded.square().mean(-1, keepdim=True) + eps).sqrt()
    *gradients, dy = torch.autograd.grad(u, (*leaves, rounded), du.double())
    values = u.detach(), *gradients
    sizes = [t.norm() for t in values]
    sizes[2] = (x.double().norm(dim=-1) * dy.norm(dim=-1, keepdim=True)).norm()
    return list(zip(values, sizes, strict=True))


def relative(result, exact):
    value, size = exact
    return ((result.double() - value).norm() / size).item()


@pytest.fixture(params=["pytorch", "kernels"])
def path(request, monkeypatch):
    if request.param == "kernels":
        pytest.importorskip("triton", reason="the bodies import Triton")
        kernels_on_cpu(monkeypatch)


@pytest.mark.parametrize("device", ["h200", "mi350"])
@pytest.mark.parametrize(
    ("n", "columns", "dtype", "early"),
    [
        (4, 7168, "float32", 2),
        (2, 16384, "bfloat16", 2),
        # what Triton 3.9 compiles with two: 237,668, 237,892 and 229,540 bytes, of 232,448
        (4, 16384, "bfloat16", 0),
        (11, 8192, "bfloat16", 0),
        (5, 8192, "float32", 0),
    ],
)
def test_rows_are_loaded_early_if_shared_memory_holds_them(n, columns, dtype, early, device):
    config, _ = space.backward_default(PreCall(dtype, n, columns), DEVICES[device])
    assert dict(config)["range_num_stages"] == (0, early if device == "h200" else 0)


@pytest.mark.gpu
@pytest.mark.parametrize("c", [72, 4096, 7168])
def test_a_site_on_a_gpu(c):
    """Values and gradients against float64; in bfloat16 the parts round what they hand on."""
    n, tokens = 4, 130
    x, _, weight, _ = inputs(tokens, n=n, c=c)
    fn, scale, base = randn(24, n * c, seed=4, scale=0.02), 1 + randn(3, seed=5, scale=0.1), randn(24, seed=6)

    def values_of(function, *tensors):
        return list(function(*tensors[:4], y_norm_weight=tensors[4]))

    for dtype, limit in ((torch.float32, 2e-5), (torch.bfloat16, 4 * UNIT)):
        own = x.to(dtype), fn, scale, base, weight
        leaves = [t.cuda().requires_grad_() for t in own]
        wide = [t.double().requires_grad_() for t in own]
        values, exact = values_of(hc_site, *leaves), values_of(reference.hc_site, *wide)
        upstream = [randn(*t.shape, seed=20 + k, dtype=t.dtype) for k, t in enumerate(values)]
        gradients = torch.autograd.grad(values, leaves, [g.cuda() for g in upstream])
        expected = torch.autograd.grad(exact, wide, [g.double() for g in upstream])
        sizes = [t.norm() for t in (*exact, *expected)]
        # the sum over tokens that is the gradient of the scale may cancel
        of_tokens = [
            torch.autograd.grad(
                values_of(reference.hc_site, wide[0][k : k + 1], *wide[1:]),
                wide[2], [g[k : k + 1].double() for g in upstream],
            )[0]
            for k in range(tokens)
        ]  # fmt: skip
        sizes[len(values) + 2] = torch.stack(of_tokens).abs().sum(0).norm()
        for a, b, size in zip((*values, *gradients), (*exact, *expected), sizes, strict=True):
            assert relative(a.detach().cpu(), (b.detach(), size)) < limit


@pytest.mark.parametrize("kind", ["one stream", "of many magnitudes", "along the gradient", "all alike"])
def test_peaked_inputs(path, kind):
    """Errors have the size of a few float32 roundings, relative to the largest entry of a token."""
    x, pre, weight, du = inputs(7, c=130, seed=20)
    if kind == "one stream":
        pre = torch.eye(4)[torch.arange(7) % 4]
    elif kind == "of many magnitudes":
        x = x * torch.logspace(-6, 6, 130)
    elif kind == "along the gradient":
        # h = v: nothing but the noise of the sums is left of dy
        y = (pre.unsqueeze(-1) * x).sum(-2)
        du = y / weight + 1e-3 * du
    else:
        x = x[:, :1].expand_as(x)
    given = x, pre, weight, du
    for result, exact in zip(results(hc_pre, *given), truth(*given), strict=True):
        assert relative(result, exact) < (1e-3 if kind == "along the gradient" else 1e-5)


@pytest.mark.parametrize("value", [0.0, 1e-20, 1e18])
def test_small_and_large_tokens_are_finite(path, value):
    x, pre, weight, du = inputs(3)
    x[1] = value
    for result in results(hc_pre, x, pre, weight, du, eps=2e-38):
        assert result.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_weights_of_any_dtype(path, dtype):
    x, pre, weight, du = inputs(6, dtype=torch.bfloat16)
    weight = weight.to(dtype)
    u, *_, dweight = results(hc_pre, x, pre, weight, du)
    exact = truth(x, pre, weight, du)
    assert (u.dtype, dweight.dtype) == (torch.bfloat16, dtype)
    assert relative(u, exact[0]) < 0.6 * UNIT
    assert relative(dweight, exact[3]) < (UNIT if dtype != torch.float64 else 1e-6)


@pytest.mark.parametrize(
    ("weight", "eps", "error", "said"),
    [
        (torch.ones(95), 1e-6, ValueError, r"y_norm_weight has shape \(95,\); for x of shape"),
        (torch.ones(96, dtype=torch.int32), 1e-6, TypeError, "y_norm_weight"),
        (torch.ones(96), 0.0, ValueError, "y_norm_eps is 0.0; pass a finite float of at least 1.2e-38"),
        (torch.ones(96), "1e-6", TypeError, "y_norm_eps"),
    ],
)
def test_errors(weight, eps, error, said):
    x, pre, _, _ = inputs(2)
    norm, site = (
        {"y_norm_weight": weight, "y_norm_eps": eps},
        (randn(24, 384), torch.ones(3), torch.zeros(24)),
    )
    for call in (
        lambda: hc_pre(x, pre, **norm),
        lambda: hc_site(x, *site, **norm),
        lambda: hc_boundary(x[:, 0], x, pre, x @ x.mT, pre, *site, **norm),
    ):
        with pytest.raises(error, match=said):
            call()
