"""quantize(u): layouts, arguments, and a kernel with the bits of PyTorch; tests/contract has its budgets."""

from __future__ import annotations

import itertools

import pytest
import torch
from autograd_calls import assert_equal
from cuda_graphs import capture
from float8_bytes import assert_same, bytes_of
from launches import kernels_on_cpu, noted_on_cpu

from helion_sinkhorn.mhc import quantized
from helion_sinkhorn.mhc.quantized import Quantized, quantize
from helion_sinkhorn.ops.mhc.pre.quantized import eager, launch

FORMS = [*itertools.product(("float32", "e8m0"), ("row", "column"))]


@pytest.fixture
def by_kernel(monkeypatch):
    """CPU tensors take the kernel."""
    kernels_on_cpu(monkeypatch, quantized.__name__)


def drawn(*shape, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(0)
    u = torch.randn(*shape, generator=generator) * 2.0 ** torch.randint(-12, 3, shape, generator=generator)
    return u.to(dtype)


def test_column_layouts_hold_the_same_scales():
    for tokens in (1, 4, 7):
        u = drawn(tokens, 32 * 6)
        rows, columns = (quantize(u, group=32, layout=layout) for layout in ("row", "column"))
        assert torch.equal(columns.values.view(torch.uint8), rows.values.view(torch.uint8))
        assert torch.equal(columns.scales, rows.scales)
        padded = -(-tokens // 4) * 4
        assert rows.scales.stride() == (6, 1)
        assert columns.scales.stride() == (1, padded)
        rows, packed = (quantize(u, group=32, scales="e8m0", layout=of) for of in ("row", "column"))
        assert packed.scales.dtype == torch.int32
        assert packed.scales.shape == (tokens, 2)
        assert packed.scales.stride() == (1, padded)
        exponents = rows.scales.view(torch.uint8).tolist()
        for token, words in enumerate(packed.scales.tolist()):
            unpacked = [word >> shift & 255 for word in words for shift in (0, 8, 16, 24)]
            assert unpacked == [*exponents[token], 0, 0]
    batch = drawn(6, 64).view(2, 3, 64)
    scales = quantize(batch, group=32, layout="column").scales
    assert scales.stride() == (8, 1, 4)
    assert torch.equal(scales[1], quantize(batch[1], group=32).scales)


@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_the_bits_and_the_layouts_of_pytorch(scales, layout):
    for dtype, group in ((torch.float32, 16), (torch.bfloat16, 32), (torch.float16, 256)):
        for lead in ((1,), (5,), (2, 3), (2, 1, 6)):
            u = drawn(*lead, 3 * group, dtype=dtype)
            given = u, group, scales, layout, 1e-4
            assert_same(launch.forward(*given), eager.forward(*given))
    rows = drawn(7, 2 * 64)[::2, 32:96]
    assert_same(launch.forward(rows, 32, scales, layout, 1e-4), eager.forward(rows, 32, scales, layout, 1e-4))


def test_groups_that_the_kernel_takes(by_kernel, monkeypatch):
    launched = noted_on_cpu(monkeypatch, lambda name, arguments: name)
    for group in (16, 128):
        quantize(drawn(2, 256), group=group)
    assert launched == [launch.NAME] * 2
    for u, group in ((drawn(2, 256), 8), (drawn(2, 96), 48), (drawn(2, 256, dtype=torch.float64), 128)):
        quantize(u, group=group)
    quantize(drawn(2, 256), implementation="pytorch")
    assert len(launched) == 2


@pytest.mark.parametrize("where", ["eager", "kernels"])
@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_out(monkeypatch, where, scales, layout):
    """Tensors that hold something already."""
    options = {"group": 32, "scales": scales, "layout": layout}
    if where == "kernels":
        kernels_on_cpu(monkeypatch, quantized.__name__)
    for shape in ((5, 96), (2, 7, 160), (0, 64)):
        u = drawn(*shape)
        expected = quantize(u, **options)
        out = quantize(-4 * u, **options)
        memory = out.scales.mT if layout == "column" else out.scales
        memory.view(torch.uint8).fill_(7)
        results = quantize(u, **options, out=out)
        assert all(a is b for a, b in zip(results, out, strict=True))
        assert_same(results, expected)
    u = drawn(5, 160)
    values, of_u = quantize(u, **options)
    turned = of_u.mT.contiguous().mT if layout == "row" else of_u.contiguous()
    for change, error, message in (
        ((values.view(torch.uint8), of_u), TypeError, "out.values has dtype torch.uint8, and its result"),
        ((values, turned), ValueError, "out.scales has strides"),
        ((values[:4], of_u), ValueError, r"out.values has shape \(4, 160\); for u of shape"),
    ):
        with pytest.raises(error, match=message):
            quantize(u, **options, out=Quantized(*change))
    with pytest.raises(TypeError, match=r"out is a tuple; pass helion_sinkhorn\.mhc\.quantized\.Quantized"):
        quantize(u, **options, out=(values, of_u))


def test_out_of_some_tokens_changes_no_others(by_kernel):
    """Scales by columns are packed: those of 5 and of 8 tokens have the same strides."""
    options = {"group": 32, "scales": "e8m0", "layout": "column"}
    u, whole = drawn(5, 160), quantize(drawn(8, 160), **options)
    others = [bytes_of(t[5:]) for t in whole]
    results = quantize(u, **options, out=Quantized(*[t[:5] for t in whole]))
    assert_same(results, quantize(u, **options))
    assert_equal([bytes_of(t[5:]) for t in whole], others)


def test_sizes_may_be_symbols():
    run = torch.compile(lambda u: quantize(u, scales="e8m0", layout="column"), dynamic=True,
                        backend="aot_eager", fullgraph=True)  # fmt: skip
    u = drawn(3, 256)
    assert_same(run(u), quantize(u, scales="e8m0", layout="column"))


def test_a_compiler_copies_into_out():
    u, options = drawn(3, 64), {"layout": "column", "group": 32}
    out = quantize(-u, **options)
    run = torch.compile(lambda u, out: quantize(u, **options, out=out), backend="aot_eager", fullgraph=True)
    run(u, out)
    assert_same(out, quantize(u, **options))


@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_torch_knows_the_operator(by_kernel, scales, layout):
    given = 32, scales, layout, 1e-10
    operator = torch.ops.helion_sinkhorn.quantize
    for u in (drawn(2, 3, 160), drawn(0, 96)):
        torch.library.opcheck(operator, (u, *given), test_utils=("test_schema", "test_faketensor"))
        assert_same(operator(u, *given), eager.forward(u, *given))


def test_vmap_folds_into_the_tokens(by_kernel):
    u = drawn(5, 3, 96)
    options = {"group": 32, "scales": "e8m0", "layout": "column"}
    mapped = torch.func.vmap(lambda t: tuple(quantize(t, **options)), in_dims=1)(u)
    for k in range(3):
        assert_same([t[k] for t in mapped], quantize(u[:, k], **options))


@pytest.mark.parametrize("path", ["pytorch", "kernel"])
@pytest.mark.parametrize("scales", ["float32", "e8m0"])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_in_its_group(scales, bad, path, monkeypatch):
    if path == "kernel":
        kernels_on_cpu(monkeypatch, quantized.__name__)
    u = drawn(3, 96, dtype=torch.float32)
    clean = quantize(u, group=32, scales=scales)
    u[1, 40] = bad
    values, factors = quantize(u, group=32, scales=scales)
    assert values[1, 32:64].float().isnan().all()
    assert factors[1, 1].float().isnan()
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[1, 1] = False
    assert torch.equal(factors.float()[keep], clean.scales.float()[keep])
    groups, expected = (t.float().unflatten(-1, (-1, 32))[keep] for t in (values, clean.values))
    assert torch.equal(groups, expected)


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"group": 48}, ValueError, r"u has shape \(2, 64\); for layout='row' and group=48 pass"),
        ({"group": 0}, ValueError, "group is 0"), ({"group": 2.0}, TypeError, "group is 2.0"),
        ({"scales": "e8mo"}, ValueError, "'e8m0'"), ({"layout": "col"}, ValueError, "layout is 'col'"),
        ({"floor": 0.0}, ValueError, "floor is 0.0; pass a float from 1e-30"),
        ({"floor": "1"}, TypeError, "floor is '1'"),
        ({"implementation": "helion"}, NotImplementedError, "u is on cpu"),
        ({"u": torch.zeros(2, 64).int()}, TypeError, "u has dtype"),
        ({"u": torch.zeros(64), "layout": "column"}, ValueError, r"pass \(\.\.\., T, C\)"),
        ({"u": torch.zeros(2, 64, requires_grad=True)}, RuntimeError, r"torch\.no_grad\(\)"),
    ],
)  # fmt: skip
def test_bad_arguments(options, kind, message):
    given = {"u": torch.zeros(2, 64), "group": 32, **options}
    with pytest.raises(kind, match=message):
        quantize(given.pop("u"), **given)


@pytest.mark.gpu
@pytest.mark.parametrize(("scales", "layout"), FORMS)
@pytest.mark.parametrize("group", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_every_form(dtype, group, scales, layout):
    u = (torch.randn(2, 37, 3 * 256) * 2.0 ** torch.randint(-12, 3, (2, 37, 3 * 256))).to(dtype)
    options = {"group": group, "scales": scales, "layout": layout}
    assert_same(quantize(u.cuda(), implementation="helion", **options), quantize(u, **options))


@pytest.mark.gpu
@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_every_bfloat16(scales, layout):
    """All 65,536, NaN and infinity among them, each in a group of its own with what is 16 codes away."""
    u = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).view(-1, 16).mT
    u = u.contiguous().view(16, -1)
    on_gpu, expected = (
        quantize(t, group=16, scales=scales, layout=layout, floor=1e-30) for t in (u.cuda(), u)
    )
    codes, wanted = on_gpu.values.cpu().view(torch.uint8), expected.values.view(torch.uint8)
    # PyTorch keeps the sign of NaN
    is_nan = wanted & 127 == 127
    assert torch.equal(codes & 127, wanted & 127)
    assert torch.equal(codes[~is_nan], wanted[~is_nan])
    assert torch.equal(on_gpu.scales.cpu().float().nan_to_num(), expected.scales.float().nan_to_num())


@pytest.mark.gpu
@pytest.mark.parametrize(("scales", "layout"), FORMS)
def test_a_captured_graph_and_a_compiled_call(scales, layout):
    options = {"group": 32, "scales": scales, "layout": layout}
    u = torch.randn(19, 192).bfloat16()
    expected, given = quantize(u, **options), u.cuda()
    quantize(given, **options)
    graph, captured = capture(lambda: tuple(quantize(given, **options)))
    graph.replay()
    assert_same(captured, expected)
    torch.compiler.reset()
    assert_same(torch.compile(lambda t: tuple(quantize(t, **options)), fullgraph=True)(given), expected)
