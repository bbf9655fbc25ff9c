"""The Triton code generated from the body of quantize, tile by tile, bit for bit beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from float8_bytes import assert_same

from helion_sinkhorn.lab.site import trials
from helion_sinkhorn.ops.mhc.mixes.launch import Partials
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import Out
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed
from helion_sinkhorn.ops.mhc.pre.quantized import eager, launch
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import FLOOR, Quantized
from helion_sinkhorn.ops.mhc.site.finish import launch as finish
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice

CHOICE = Choice(launch.NAME, (("block_sizes", (8,)), ("num_warps", 1)), (), "a test")


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("scales", ["float32", "e8m0"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups(dtype, scales, layout, monkeypatch):
    """Two tiles and a tail; in integers, as for a device without a cast, which the interpreter has not."""
    monkeypatch.setattr(launch, "has_cast", lambda chosen: False)
    u = torch.randn(2, 5, 80) * 2.0 ** torch.randint(-12, 3, (2, 5, 80))
    given = u.to(dtype), 16, scales, layout, 1e-4
    assert_same(launch.forward(*given, CHOICE), eager.forward(*given))


@pytest.mark.parametrize("layout", ["row", "column"])
@pytest.mark.parametrize("scales", ["float32", "e8m0"])
def test_a_row_behind_its_norm(scales, layout, monkeypatch):
    """Five groups, four at a time, by the launches for few tokens and for many."""
    monkeypatch.setattr(launch, "has_cast", lambda chosen: False)
    monkeypatch.setattr(launch, "ENTRIES", 2)
    call, kind = SiteCall("bfloat16", 4, 80, "float32"), (16, scales, layout)
    *partials, scale, base, streams, weight = trials.of_finish(call, 6, "cpu")
    streams = streams.view(2, 3, 4, 80)
    outs = [Quantized(*launch.results(streams[..., 0, :], *kind)) for _ in range(3)]
    site, options = SiteParameters(None, scale, base, y_norm_weight=weight), SiteOptions().checked()
    y, pre, *_ = finish.run(Partials(*partials), site, streams, None, call, options, Out(quantized=outs[0]))
    many = normed.forward(streams, pre, weight, options.y_norm_eps, quantized=outs[1])
    alone = streams[..., 0, :].clone()
    normed.normalise(alone, weight, options.y_norm_eps, outs[2])
    for out, u in zip(outs, (y, many, alone), strict=True):
        assert_same(out, eager.forward(u, *kind, FLOOR))
