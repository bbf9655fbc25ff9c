"""The modules: nn.Sinkhorn, the drop-in FusedMHC and the lane mixer, against their formulas."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal, randn, value_and_gradient
from targets import INDUCTOR_BY_NIGHT

from helion_sinkhorn import Implicit, nn, sinkhorn

# Roundings on the longest path of 20 iterations of a 4x4 matrix and back: 2 * 20 half-steps of 4 products,
# a reciprocal and a scaling each, once forwards and once backwards
PATH = 2 * 40 * 6 * 2**-24


def assert_close(actual, exact, dtype):
    """Float32 arithmetic and one rounding to `dtype`."""
    for a, b in zip(actual, exact, strict=True):
        assert a.dtype == dtype
        atol = PATH * max(1.0, b.abs().max().item())
        rtol = torch.finfo(dtype).eps / 2 if dtype in (torch.float16, torch.bfloat16) else 0
        torch.testing.assert_close(a.double(), b, rtol=rtol, atol=atol)


def log_domain(x, iters=20):
    """The module FusedMHC replaces, as its README states it."""
    x = x.clamp(min=-1e5)
    for _ in range(iters):
        x = x - x.logsumexp(-1, keepdim=True)
        x = x - x.logsumexp(-2, keepdim=True)
    return x.exp()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_iters": 3, "eps": 1e-3, "first": "cols"},
        {"n_iters": 5, "form": "log", "out_dtype": torch.float64},
        {"n_iters": 0, "implementation": "pytorch", "backward": "exact"},
    ],
    ids=str,
)
def test_sinkhorn_is_the_function_with_fixed_options(options):
    module = nn.Sinkhorn(**options)
    x, dp = randn(2, 3, 4, 5), randn(2, 3, 4, 5, seed=1, dtype=options.get("out_dtype", torch.float32))
    expected = value_and_gradient(lambda x: sinkhorn(x, **options), x, dp)
    assert_equal(value_and_gradient(module, x, dp), expected)
    assert module.state_dict() == {}
    for name, value in options.items():
        assert f"{name}={value!r}" in repr(module)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: nn.Sinkhorn(form="x"), "form is 'x'"),
        (lambda: nn.Sinkhorn(form="log", eps=1e-3), "which has no eps"),
        (lambda: Implicit(solver="lu"), "Implicit: solver is 'lu'; use one of 'auto'"),
        (lambda: Implicit("x"), "Implicit: system is 'x'; use one of 'corrected'"),
        (lambda: nn.SinkhornLaneMixer(0), "num_lanes is 0; pass an int of at least 1"),
    ],
)
def test_constructors_check_their_options(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()


@pytest.mark.parametrize("lead", [(), (1,), (32,), (2, 3), (0,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_fused_mhc_of_any_leading_shape_and_dtype(lead, dtype):
    x, dp = randn(*lead, 4, 4, dtype=dtype), randn(*lead, 4, 4, seed=1, dtype=dtype)
    actual = value_and_gradient(nn.FusedMHC(), x, dp)
    if 0 in lead:
        assert_equal(actual, (x, x))
        return
    # the original computes in float32 whatever it is given, float64 too
    exact = value_and_gradient(log_domain, x.float().double(), dp.double())
    assert_close(actual, exact, dtype)


def test_fused_mhc_counts_iterations_and_normalises_rows_first():
    x, dp = 3 * randn(8, 4, 4), randn(8, 4, 4, seed=1)
    for iters in (1, 2, 7):
        module = nn.FusedMHC(mhc_iters=iters)
        exact = value_and_gradient(lambda x, iters=iters: log_domain(x, iters), x.double(), dp.double())
        assert_close(value_and_gradient(module, x, dp), exact, torch.float32)
        assert repr(module) == f"FusedMHC(mhc_iters={iters})"
    # far from convergence the last side normalised is the one that sums to one
    p = nn.FusedMHC(1)(x)
    assert (p.sum(-2) - 1).abs().max() < 1e-6
    assert (p.sum(-1) - 1).abs().max() > 0.1


def test_fused_mhc_clamps_masked_logits():
    x, dp = randn(4, 4, 4), randn(4, 4, 4, seed=1)
    x[0, 1, 2] = -math.inf
    x[1, 0] = -math.inf
    x[2, :, 3] = -2e5
    p, dx = value_and_gradient(nn.FusedMHC(), x, dp)
    exact, exact_dx = value_and_gradient(log_domain, x.double(), dp.double())
    # near -1e5 float32 steps by 2^-7, and so do the differences the result is made of
    torch.testing.assert_close(p.double(), exact, rtol=0, atol=20 * 2**-7)
    assert_close((p[[0, 3]], dx[[0, 3]]), (exact[[0, 3]], exact_dx[[0, 3]]), torch.float32)
    assert p.isfinite().all()
    clamped = x < -1e5
    assert torch.equal(dx[clamped], torch.zeros_like(dx[clamped]))


def test_modules_on_a_device_without_autocast():
    x = torch.empty(3, 4, 8, device="meta", dtype=torch.float16)
    p, y = nn.FusedMHC()(x[..., :4]), nn.SinkhornLaneMixer(4).to("meta")(x)
    assert (p.shape, p.dtype, p.device) == ((3, 4, 4), torch.float16, x.device)
    assert (y.shape, y.dtype, y.device) == ((3, 4, 8), torch.float16, x.device)


def mix(mixer, x):
    """The seed's mixer: P from the log-domain formula, then its einsum."""
    p = log_domain(mixer.mixing_logits.double())
    return torch.einsum("bsid,oi->bsod", x.double(), p)


@pytest.fixture
def mixer():
    torch.manual_seed(0)
    mixer = nn.SinkhornLaneMixer(4)
    # the seed starts near the uniform matrix, which hides a transposed product
    with torch.no_grad():
        mixer.mixing_logits.mul_(50)
    return mixer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_lane_mixer_is_the_einsum(mixer, dtype, autocast):
    x, dy = randn(2, 3, 4, 8, dtype=dtype), randn(2, 3, 4, 8, seed=1, dtype=dtype)
    x.requires_grad_()
    inputs = (x, mixer.mixing_logits)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        y = mixer(x)
    dx, dlogits = torch.autograd.grad(y, inputs, dy)
    exact = mix(mixer, x)
    exact_dx, exact_dlogits = torch.autograd.grad(exact, inputs, dy.double())
    assert dlogits.dtype == torch.float32
    assert_close((y, dx), (exact, exact_dx.double()), dtype)
    assert_close((dlogits,), (exact_dlogits.double(),), torch.float32)


def test_lane_mixer_takes_any_leading_shape(mixer):
    x = randn(2, 3, 4, 8)
    y = mixer(x)
    torch.testing.assert_close(mixer(x[0, 0]), y[0, 0], rtol=0, atol=2**-22)
    torch.testing.assert_close(mixer(x[None]), y[None], rtol=0, atol=2**-22)


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (2, 4, 3, 8), (4,), (8, 3)], ids=str)
def test_lane_mixer_says_which_lanes_it_wants(mixer, shape):
    with pytest.raises(ValueError, match=r"x_lanes has shape \(.*\); pass \(\.\.\., 4, dim\)") as raised:
        mixer(torch.zeros(shape))
    assert str(tuple(shape)) in str(raised.value)


def test_lane_mixer_state_is_its_logits(mixer):
    assert list(mixer.state_dict()) == ["mixing_logits"]
    twin = nn.SinkhornLaneMixer(num_lanes=4, iters=20)
    x = randn(2, 3, 4, 8)
    assert not torch.equal(twin(x), mixer(x))
    twin.load_state_dict(mixer.state_dict())
    assert torch.equal(twin(x), mixer(x))
    assert "num_lanes=4" in repr(mixer)
    assert "FusedMHC(mhc_iters=20)" in repr(mixer)
    assert nn.SinkhornLaneMixer(3, iters=6).sinkhorn.mhc_iters == 6
    # small random logits, as in the seed
    fresh = torch.cat([nn.SinkhornLaneMixer(16).mixing_logits.detach().flatten() for _ in range(8)])
    assert 0.015 < fresh.std() < 0.025


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=INDUCTOR_BY_NIGHT)])
def test_a_compiled_lane_mixer(mixer, backend):
    """The others are compiled in tests/contract."""
    x, dy = randn(2, 3, 4, 8), randn(2, 3, 4, 8, seed=1)
    y, z = torch.compile(mixer, fullgraph=True, backend=backend)(x), mixer(x)
    torch.testing.assert_close(y, z, rtol=1e-5, atol=1e-6)
    actual, expected = (torch.autograd.grad(out, mixer.mixing_logits, dy) for out in (y, z))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
