"""quantize on a CUDA or ROCm device: bit for bit what PyTorch makes on a CPU."""

from __future__ import annotations

import itertools

import pytest
import torch
from cuda_graphs import capture
from float8_bits import assert_same

from helion_sinkhorn.mhc.quantized import quantize

pytestmark = pytest.mark.gpu

FORMS = [*itertools.product(("float32", "e8m0"), ("row", "column"))]


@pytest.mark.parametrize(("scales", "layout"), FORMS)
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_form(dtype, group, scales, layout):
    u = (torch.randn(2, 37, 3 * 256) * 2.0 ** torch.randint(-12, 3, (2, 37, 3 * 256))).to(dtype)
    options = {"group": group, "scales": scales, "layout": layout}
    assert_same(quantize(u.cuda(), implementation="helion", **options), quantize(u, **options))


@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_every_bfloat16(scales, layout):
    """All 65,536, NaN and infinity among them, each in a group of its own with what is 16 codes away."""
    u = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).view(-1, 16).mT
    u = u.contiguous().view(16, -1)
    found, expected = (
        quantize(t, group=16, scales=scales, layout=layout, floor=1e-30) for t in (u.cuda(), u)
    )
    codes, wanted = found.values.cpu().view(torch.uint8), expected.values.view(torch.uint8)
    # PyTorch keeps the sign of NaN
    is_nan = wanted & 127 == 127
    assert torch.equal(codes & 127, wanted & 127)
    assert torch.equal(codes[~is_nan], wanted[~is_nan])
    assert torch.equal(found.scales.cpu().float().nan_to_num(), expected.scales.float().nan_to_num())


@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_a_captured_graph_and_a_compiled_call(scales, layout):
    options = {"group": 32, "scales": scales, "layout": layout}
    u = torch.randn(19, 192).bfloat16()
    expected, given = quantize(u, **options), u.cuda()
    quantize(given, **options)
    graph, found = capture(lambda: tuple(quantize(given, **options)))
    graph.replay()
    assert_same(found, expected)
    torch.compiler.reset()
    assert_same(torch.compile(lambda t: tuple(quantize(t, **options)), fullgraph=True)(given), expected)
