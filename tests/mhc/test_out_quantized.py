"""Out(quantized=..): y in float8 beside y, with the bits of quantize(y), and nothing written beside them."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from autograd_calls import assert_equal
from cuda_graphs import capture
from float8_bytes import assert_same
from hc_boundaries import boundary, boundary_inputs
from launches import noted_on_cpu

from helion_sinkhorn import Out, hc_site
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.mhc.quantized import Quantized, quantize
from helion_sinkhorn.ops.mhc.out import span
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed
from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized
from helion_sinkhorn.ops.mhc.site import crossing
from helion_sinkhorn.ops.mhc.site.finish import launch as finish

KINDS = [(128, "float32", "row"), (32, "e8m0", "row"), (128, "float32", "column"), (32, "e8m0", "column")]
COLUMNS = {128: 384, 32: 160}
"""Three groups, or five, where an int32 has four."""
each_kind = pytest.mark.parametrize("kind", KINDS, ids=str)
CALLS = [(own, norm) for own in (True, False, None) for norm in (True, False)]
"""A boundary with its own weights and with given ones, and a site; with a norm and without."""


@pytest.fixture(params=["pytorch", "few", "many"])
def launched(request, monkeypatch):
    """The launches of calls by PyTorch, by the kernels for few tokens, and by those for many."""
    if request.param == "pytorch":
        return None
    # a group of 128 columns at a time, or four of 32
    monkeypatch.setattr(quantized, "ENTRIES", 4)
    if request.param == "many":
        monkeypatch.setattr(finish, "FEW", 0)
    return noted_on_cpu(monkeypatch)


def inputs(*lead, c=160, device="cpu"):
    given, _ = boundary_inputs(*lead, n=4, c=c, dtype=torch.bfloat16)
    return [t.contiguous().to(device) for t in given]


def called(given, own, norm, **options):
    if norm:
        size = given[0].size(-1)
        options["y_norm_weight"] = torch.linspace(0.5, 2, size, device=given[0].device)
    if own is None:
        return hc_site(given[1], *given[4:7], 3, **options)
    return boundary(*given, own=own, **options)


def rounded(y, kind):
    group, scales, layout = kind
    return quantize(y, group=group, scales=scales, layout=layout)


def guarded(like, device="cpu"):
    """Memory of 7s, and a tensor in its middle with the layout of another."""
    size = span(like) * like.element_size() if like.numel() else 0
    memory = torch.full((size + 128,), 7, dtype=torch.uint8, device=device)
    return memory, memory[64 : 64 + size].view(like.dtype).as_strided(like.shape, like.stride())


def without_signs(codes):
    """Bytes of e4m3 whose NaN have no sign: PyTorch and kernels choose different ones."""
    return torch.where(codes & 127 == 127, 127, codes)


def check(given, own, norm, kind):
    """A call writes what quantize makes of its y, and no other byte; its results stay the same."""
    expected = called(given, own, norm)
    wanted = rounded(expected.y.cpu(), kind)
    memories, tensors = zip(*[guarded(t, expected.y.device) for t in wanted], strict=True)
    outputs = called(given, own, norm, out=Out(quantized=Quantized(*tensors)))
    assert_equal(*([t.nan_to_num() for t in results] for results in (outputs, expected)))
    for memory, like, clean in zip(memories, wanted, (without_signs, torch.clone), strict=True):
        right, at = guarded(like)
        at.copy_(like)
        assert torch.equal(clean(memory.cpu()), clean(right))


@each_kind
def test_a_boundary_and_a_site(launched, kind):
    """Two rows of three tokens; one has a NaN, and one is zero."""
    given, nothing = (inputs(*lead, c=COLUMNS[kind[0]]) for lead in ((2, 3), (2, 0)))
    given[1][0, 1, 2, 3] = torch.nan
    given[1][1, 2] = 0
    for own, norm in CALLS:
        check(given, own, norm, kind)
        if launched is not None:
            # with a norm the launch that makes y rounds it too
            assert launched.count("quantize_groups") == (not norm)
            launched.clear()
        check(nothing, own, norm, kind)


def test_packed_inference_tensors_under_no_grad():
    """An error behind the first launch would leave the caller's streams half changed."""
    with torch.inference_mode():
        scales = rounded(inputs(3)[0], KINDS[3]).scales.fill_(7)
    with torch.no_grad():
        quantized.clear(scales, 5)
    assert torch.equal(scales, torch.zeros(3, 2, dtype=torch.int32))


def test_amd_has_a_launch_of_its_own(monkeypatch):
    monkeypatch.setattr(finish, "FEW", 0)
    monkeypatch.setattr(normed, "device_of", lambda x: DEVICES["mi350"])
    launched = noted_on_cpu(monkeypatch)
    for own in (True, False, None):
        check(inputs(3), own, True, KINDS[3])
        assert launched.count("quantize_groups") == 1
        launched.clear()


def test_y_in_given_memory_and_another_dtype(launched):
    for dtype in (torch.float32, torch.float64):
        given = [t.to(dtype) for t in inputs(3)]
        y = torch.empty_like(given[0])
        out = Out(y, quantized=rounded(y, KINDS[1]))
        assert called(given, False, True, out=out).y is y
        assert_same(out.quantized, rounded(y, KINDS[1]))


def test_other_groups_are_made_by_pytorch(launched):
    """And everything is copied."""
    given, kind = inputs(3, c=96), (48, "e8m0", "row")
    for own, norm in CALLS:
        check(given, own, norm, kind)
    assert launched is None or "quantize_groups" not in launched


def test_parts_of_a_site(launched):
    """A form of Sinkhorn for which a site has no kernels."""
    given = inputs(3)
    out = Out(quantized=rounded(given[0], KINDS[3]))
    y = hc_site(given[1], *given[4:7], 3, form="log", out=out).y
    assert_same(out.quantized, rounded(y, KINDS[3]))


def test_autograd_hears_of_it(monkeypatch):
    noted_on_cpu(monkeypatch)
    counted = []
    monkeypatch.setattr(crossing, "count_change", lambda *tensors: counted.extend(tensors))
    given = inputs(3)
    out = rounded(given[0], KINDS[1])
    for own in (True, None):
        called(given, own, True, out=Out(quantized=out))
        assert [id(t) for t in counted if t is not None] == [*map(id, out)]
        counted.clear()


@each_kind
def test_a_compiler_copies(kind):
    given = inputs(3, c=COLUMNS[kind[0]])
    expected, out = called(given, False, True), rounded(given[0], kind)
    with torch.no_grad():
        compiled = torch.compile(
            lambda given, out: called(given, False, True, out=out), backend="aot_eager", fullgraph=True
        )
        outputs = compiled(given, Out(quantized=out))
    assert_equal(outputs, expected)
    assert_same(out, rounded(expected.y, kind))


given = inputs(6, c=64)
codes, scales = rounded(given[0], (32, "float32", "row"))
packed = rounded(given[0], (32, "e8m0", "column")).scales
REFUSED = {
    "a tuple": ((codes, scales), TypeError, r"out\.quantized is a tuple; pass helion_sinkhorn\.mhc\.quant"),
    "no tensor": (Quantized(codes, [1.0]), TypeError, r"out\.quantized\.scales is a list; pass a torch\.T"),
    "bytes": (Quantized(codes.view(torch.uint8), scales), TypeError, r"values has dtype torch\.uint8, and"),
    "columns": (Quantized(codes[:, :32], scales), ValueError, r"values has shape \(6, 32\); for x of shape"),
    "float16": (Quantized(codes, scales.half()), TypeError, r"scales has dtype torch\.float16; pass float32"),
    "groups": (Quantized(codes, scales.new_empty(6, 3)), ValueError, r"scales has shape \(6, 3\); for C ="),
    "tokens": (Quantized(codes, scales[:5]), ValueError, r"quantized\.scales has shape \(5, 2\); for x"),
    "packed": (Quantized(codes, packed), ValueError, "as groups of 16 and 32 and 64 columns have for C = 64"),
    "too wide": (Quantized(codes, packed.new_empty(6, 2)), ValueError, "of no number of columns have for C"),
    "strides": (Quantized(codes, scales.new_empty(12, 2)[::2]), ValueError, r"strides \(4, 1\); pass a cont"),
    "a device": (Quantized(codes.to("meta"), scales), ValueError, r"out\.quantized\.values is on meta"),
    "one another": (
        Quantized(codes, codes.view(torch.float32).flatten()[:12].view(6, 2)), ValueError,
        r"out\.quantized\.values overlaps out\.quantized\.scales; pass memory of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", [KINDS[2], KINDS[3]], ids=str)
def test_a_site_without_tokens_has_no_columns_of_scales(kind):
    given = [t[0] for t in inputs(1, c=COLUMNS[kind[0]])[:3]]
    codes, scales = rounded(given[0][None], kind)
    parameters = inputs(1, c=COLUMNS[kind[0]])[4:7]
    with pytest.raises(ValueError, match=r"out\.quantized\.scales has shape \(1, \d\)"):
        hc_site(given[1], *parameters, 3, out=Out(quantized=Quantized(codes[0], scales)))


def test_one_group_whose_scale_has_any_stride(launched):
    """By columns too, as quantize takes them, and contiguous ones by rows."""
    given = inputs(2, 3, c=128)
    for layout, strides in (("column", (4, 1, 1)), ("column", (4, 1, 4)), ("row", (3, 1, 3))):
        codes, scales = rounded(given[0], (128, "float32", layout))
        scales = scales.new_zeros(8).as_strided(scales.shape, strides)
        y = called(given, False, True, out=Out(quantized=Quantized(codes, scales))).y
        assert_same([codes], rounded(y, (128, "float32", layout))[:1])
        assert torch.equal(scales, rounded(y, (128, "float32", layout)).scales)


@pytest.mark.parametrize(("out", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(out, error, text, monkeypatch):
    launched = noted_on_cpu(monkeypatch)
    for own in (True, None):
        with pytest.raises(error, match=text):
            called(given, own, True, out=Out(quantized=out))
    assert launched == []


@pytest.mark.gpu
@each_kind
@pytest.mark.parametrize("tokens", [1, 17, 1025])
def test_on_a_gpu(tokens, kind):
    """Launches that are kept too, and a graph."""
    for c, (own, norm) in itertools.product((640, 7168), CALLS):
        given = inputs(tokens, c=c, device="cuda")
        given[1][0, 2, 3] = torch.nan
        check(given, own, norm, kind)
        out = rounded(given[0], kind)
        graph, outputs = capture(partial(called, given, own, norm, out=Out(quantized=out)))
        for t in out:
            (t.view(torch.uint8) if t.element_size() == 1 else t).zero_()
        graph.replay()
        values, scales = rounded(outputs.y.cpu(), kind)
        assert torch.equal(*(without_signs(t.cpu().view(torch.uint8)) for t in (out.values, values)))
        assert_same([out.scales], [scales])
