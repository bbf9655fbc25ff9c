"""The single launch that ends a site or boundary of few tokens gives the numbers of the launches of many."""

from __future__ import annotations

import pytest
import torch
from hc_boundaries import boundary, boundary_inputs
from launches import noted_on_cpu

from helion_sinkhorn import hc_site
from helion_sinkhorn.ops.mhc.site.finish import launch
from helion_sinkhorn.ops.mhc.site.finish.space import FEW

OPTIONS = {
    "as in models": {},
    "other constants": {
        "eps": 1e-3, "pre_eps": 0.25, "post_mult": 1.5, "norm_eps": 0.125, "y_norm_eps": 0.5,
    },
    "columns of coefficients first": {"comb_order": "oi"},
    "eps beside the root, one iteration": {"eps_outside": True, "norm_eps": 0.25, "sinkhorn_iters": 1},
}  # fmt: skip


@pytest.fixture
def launched(monkeypatch):
    """The kernels of the launches, in order."""
    return noted_on_cpu(monkeypatch)


@pytest.mark.parametrize("own", [False, True], ids=["weights of the site before", "own weights"])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_numbers_are_those_of_three_launches(launched, monkeypatch, options, own):
    given, norm = boundary_inputs(5, n=4, c=300, dtype=torch.bfloat16)[0], torch.rand(300)

    compare(
        lambda: boundary(*given, own=own, y_norm_weight=norm, **options),
        "hc_boundary_forward", launched, monkeypatch,
    )  # fmt: skip


@pytest.mark.parametrize(("c", "copies"), [(300, False), (300, True), (1024, True)])
def test_the_numbers_of_a_site_are_those_of_more_launches(launched, monkeypatch, c, copies):
    """Streams that are one in memory too, whose projection reads it once if c is a multiple of 1024."""
    _, x, _, _, fn, scale, base, *_ = boundary_inputs(5, n=4, c=c, dtype=torch.bfloat16)[0]
    if copies:
        x = x[:, :1].expand(-1, 4, -1)
    norm = torch.rand(c)

    compare(
        lambda: hc_site(x, fn, scale, base, y_norm_weight=norm, implementation="helion"),
        "hc_mixes_partials", launched, monkeypatch,
    )  # fmt: skip


def compare(call, projection, launched, monkeypatch):
    """The results of three launches, of which one makes the projection, with those of five."""
    found = call()
    assert launched[1:] == [projection, "hc_boundary_finish"]
    launched.clear()
    monkeypatch.setattr(launch, "FEW", 4)
    expected = call()
    assert len(launched) == 5
    # exponentials of a CPU may differ in the last place between blocks of other sizes; GPUs' are compared in
    # test_gpu.py, bit for bit
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-7 if a.dtype == torch.bfloat16 else 1e-6, atol=1e-6)


def test_it_ends_few_tokens_on_nvidia_alone(monkeypatch):
    x = torch.empty(1)
    vendors = []
    monkeypatch.setattr(launch, "device_of", lambda _: vendors[-1])
    for vendor, short in (("nvidia", True), ("amd", False)):
        vendors.append(type("Device", (), {"vendor": vendor}))
        assert launch.is_short(x.expand(FEW, 4, 1)) == short
        assert not launch.is_short(x.expand(FEW + 1, 4, 1))
        assert not launch.is_short(x.expand(FEW, 5, 1))
