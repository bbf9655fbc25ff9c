"""The Triton code generated from the body of quantize, tile by tile, bit for bit beside PyTorch."""

from __future__ import annotations

import pytest
import torch
from float8_specification import assert_same

from helion_sinkhorn.ops.mhc.pre.quantized import eager, launch
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
