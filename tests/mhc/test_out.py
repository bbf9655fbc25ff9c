"""Results written into given tensors: the same bits, the old streams written over, and what is refused."""

from __future__ import annotations

import itertools

import pytest
import torch
from autograd_calls import assert_equal
from hc_boundaries import boundary as seam
from hc_boundaries import boundary_inputs
from launches import OPERATORS, kernels_on_cpu

from helion_sinkhorn import Out, hc_head, hc_post, hc_pre, hc_site, nn
from helion_sinkhorn.mhc import functional, last, quantized
from helion_sinkhorn.ops.mhc.post import api as post_api
from helion_sinkhorn.ops.mhc.pre import api as pre_api
from helion_sinkhorn.ops.mhc.site import crossing


@pytest.fixture
def kernels(monkeypatch):
    for within in (OPERATORS, *(module.__name__ for module in (functional, last, quantized))):
        kernels_on_cpu(monkeypatch, within)


@pytest.fixture(params=["pytorch", "kernels"])
def where(request):
    """PyTorch and the kernels in turn."""
    if request.param == "kernels":
        request.getfixturevalue("kernels")


def inputs(*lead, n=4, c=24, dtype=torch.bfloat16):
    # in reference mode a float32 stream is a view of what is written over it
    return [t.contiguous() for t in boundary_inputs(*lead, n=n, c=c, dtype=dtype)[0]]


def rooms(results):
    return [torch.full_like(t, float("nan")) for t in results]


def mean_of(streams):
    return hc_pre(streams, torch.full(streams.shape[:-1], 1 / streams.size(-2)))


@pytest.mark.parametrize("lead", [(2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize(
    ("n", "own", "norm"), [(4, False, True), (4, True, True), (3, False, False), (5, False, False)]
)
def test_a_boundary_writes_the_same_bits(where, n, own, norm, lead):
    """One pass over the streams, and parts for their own weights and for five streams; the mean only here."""
    given = inputs(*lead, n=n)
    options = {"y_norm_weight": torch.rand(24)} if norm else {}
    expected = seam(*given, own=own, **options)
    room = Out(*rooms(expected), mean=torch.full_like(given[0], float("nan")))
    results = seam(*given, own=own, out=room, **options)
    assert all(a is b for a, b in zip(results, room[:5], strict=True))
    assert_equal([*results, room.mean], [*expected, mean_of(expected.residual)])
    torch.testing.assert_close(room.mean.float(), results.residual.float().mean(-2), rtol=2**-8, atol=1e-6)


@pytest.mark.parametrize("tokens", [6, 0])
@pytest.mark.parametrize(("n", "own"), [(4, False), (4, True), (5, False)])
def test_everything_may_replace_its_argument(where, n, own, tokens):
    given = inputs(tokens, n=n)
    expected = seam(*given, own=own)
    _, x, post, comb, *_, weights = given
    results = seam(*given, own=own, out=Out(None, None if own else weights, post, comb, x))
    assert results.residual is x
    assert results.comb is comb
    assert_equal(results, expected)


@pytest.mark.parametrize("n", [4, 5])
def test_kernels_leave_nothing_to_copy(kernels, n, monkeypatch):
    """Autograd hears of what they write; reference mode would tell it by itself."""
    copied, counted = [], []

    def written(result, into):
        copied.extend([] if into is None or result is into else [into])
        return result

    for place in (crossing, post_api, last, functional, quantized):
        monkeypatch.setattr(place, "written", written)
    for place in (last, pre_api, quantized):
        monkeypatch.setattr(place, "count_change", lambda *tensors: counted.extend(tensors))
    given = inputs(6, n=n)
    f, x, post, comb, fn, scale, base, *_ = given
    for own in (False, True):
        seam(*given, own=own, out=Out(*rooms(seam(*given, own=own)), mean=torch.empty_like(f)))
    y, *coefficients, _ = hc_site(x, fn, scale, base)
    hc_site(x, fn, scale, base, out=Out(y, None, *coefficients))
    hc_post(f, x, post, comb, out=x)
    head = last.Head(fn[:n], scale[:1], base[:n])
    for options in ({}, {"head": head}):
        last.hc_last(f, x, post, comb, **options, out=y)
    hc_head(x, *head[:3], out=y)
    u = torch.ones(6, 32)
    out = quantized.quantize(-u, group=32)
    quantized.quantize(u, group=32, out=out)
    assert copied == []
    assert [*map(id, counted)] == [*map(id, [y, y, y, *out])]


def test_post_and_site(where):
    f, x, post, comb, fn, scale, base, bias, _ = inputs(6)
    site = hc_site(x, fn, scale, base, 3)
    room = rooms(site[:3])
    results = hc_site(x, fn, scale, base, 3, out=Out(y=room[0], post=room[1], comb=room[2]))
    assert all(a is b for a, b in zip(results, [*room, x], strict=True))
    assert_equal(results, site)
    streams = hc_post(f, x, post, comb, bias)
    assert_equal([hc_post(f, x, post, comb, bias, out=torch.empty_like(x))], [streams])
    without = hc_post(f, x, post, None)
    assert_equal([hc_post(f, x.clone(), post, None, out=torch.empty_like(x))], [without])
    assert hc_post(f, x, post, comb, bias, out=x) is x
    assert_equal([x], [streams])


@pytest.mark.parametrize("lead", [(6,), (2, 0)], ids=str)
def test_head(where, lead):
    f, x, _, _, fn, scale, base, *_ = inputs(*lead)
    given = fn[:4], scale[:1], base[:4]
    expected, out = hc_head(x, *given), torch.empty_like(f)
    assert hc_head(x, *given, out=out) is out
    assert_equal([out], [expected])
    assert hc_head(x.flatten(-2), *given, merged=True, out=out) is out
    one = x[..., :1, :]
    assert hc_head(one.flatten(-2), fn[:1, :24], scale[:1], base[:1], merged=True, out=out) is out
    assert_equal([out], [hc_head(one, fn[:1, :24], scale[:1], base[:1])])
    with pytest.raises(TypeError, match=r"out has dtype torch\.float64, and its result torch\.bfloat16"):
        hc_head(x, *given, out=out.double())
    with pytest.raises(NotImplementedError, match="fn requires one; call within"):
        hc_head(x, given[0].requires_grad_(), *given[1:], out=out)


def test_merged_streams(where):
    given = inputs(6)
    expected = seam(*given, own=False)
    given[1] = given[1].flatten(-2)
    results = seam(*given, own=False, merged=True, out=Out(residual=given[1]))
    assert results.residual.data_ptr() == given[1].data_ptr()
    assert_equal([*results[:4], given[1]], [*expected[:4], expected.residual.flatten(-2)])
    f, x, post, comb, *_ = inputs(6)
    merged = hc_post(f, x.flatten(-2), post, comb, merged=True, out=x.flatten(-2))
    assert merged.data_ptr() == x.data_ptr()


def test_a_module_and_inference_mode(where):
    boundary = nn.HyperBoundary(24)
    f, x, post, comb, *_, weights = inputs(6)
    with torch.inference_mode():
        expected = boundary(f, x, post, comb, weights)
        room = Out(*rooms(expected), mean=torch.empty_like(f))
        results = boundary(f, x, post, comb, weights, out=room)
        assert all(a is b for a, b in zip(results, room[:5], strict=True))
        assert_equal([*results, room.mean], [*expected, mean_of(expected.residual)])
    with pytest.raises(NotImplementedError, match="fn requires one; call within"):
        boundary(f, x, post, comb, weights, out=Out(residual=x))


def test_autograd_hears_of_it(where):
    """What it saved before is written over."""
    f, x, post, comb, *_ = inputs(6)
    leaf = torch.ones((), requires_grad=True)
    saved = (leaf * x).sum()
    with torch.no_grad():
        hc_post(f, x, post, comb, out=x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        saved.backward()


def test_a_compiler_copies():
    given = inputs(6)
    expected, mean = seam(*given, own=False), torch.empty_like(given[0])
    with torch.no_grad():
        results = torch.compile(
            lambda given, out: seam(*given, own=False, out=out), backend="aot_eager", fullgraph=True
        )(given, Out(residual=given[1], mean=mean))
    assert results.residual.data_ptr() == given[1].data_ptr()
    assert_equal([*results, mean], [*expected, mean_of(expected.residual)])


def shifted(t):
    """The same entries from the second one of some memory on."""
    return torch.empty(t.numel() + 1, dtype=t.dtype)[1:].view(t.shape)


f, x, post, comb, fn, scale, base, bias, weights = inputs(6)
REFUSED = {
    "no Out": (lambda: (x,), TypeError, "out is a tuple; pass helion_sinkhorn.Out"),
    "another dtype": (lambda: Out(y=torch.empty(6, 24)), TypeError, "out.y has dtype torch.float32, and"),
    "another shape": (
        lambda: Out(comb=torch.empty(6, 16)), ValueError, r"out.comb has shape \(6, 16\); for x of shape"
    ),
    "strides": (lambda: Out(residual=x.mT.contiguous().mT), ValueError, "out.residual has strides"),
    "a device": (lambda: Out(y=torch.empty_like(f, device="meta")), ValueError, "out.y is on meta, x on cpu"),
    "where it begins": (lambda: Out(y=shifted(f)), ValueError, "out.y begins 2 bytes after a multiple"),
    "an argument": (lambda: Out(y=f), ValueError, "out.y overlaps f; pass memory of its own"),
    "a part of x": (
        lambda: Out(y=x.flatten()[:144].view(6, 24)), ValueError, "out.y overlaps x; pass memory of its own"
    ),
    "one another": (
        lambda: (lambda t: Out(post=t, pre=t))(torch.empty(6, 4)), ValueError, "out.pre overlaps out.post"
    ),
    "post over pre_next": (lambda: Out(post=weights), ValueError, "out.post overlaps pre_next"),
    "a gradient": (
        lambda: Out(y=torch.empty_like(f).requires_grad_()), NotImplementedError, "out.y requires one; call"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(make, error, text):
    given = f, x, post, comb, fn, scale, base, bias, weights
    before = [t.clone() for t in given]
    with pytest.raises(error, match=text):
        seam(*given, own=False, out=make())
    assert_equal(given, before)


def test_streams_that_overlap_but_are_not_the_same():
    """One token on: a program would read what another has written."""
    memory = torch.zeros(7, 4, 24, dtype=torch.bfloat16)
    memory[:6] = x
    given = f, memory[:6], post, comb, fn, scale, base, bias, weights
    with pytest.raises(ValueError, match=r"out\.residual overlaps x; pass x itself, or memory of its own"):
        seam(*given, own=False, out=Out(residual=memory[1:]))


def test_a_site_makes_neither_pre_nor_streams():
    for name, t in zip(("pre", "residual", "mean"), rooms([post, x, f]), strict=True):
        said = f"out.{name} is given, and this call does not make it; pass y, post"
        with pytest.raises(TypeError, match=said):
            hc_site(x, fn, scale, base, out=Out(**{name: t}))


def test_every_pair_of_results_must_lie_apart():
    expected = seam(f, x, post, comb, fn, scale, base, bias, weights)
    likes = {**expected._asdict(), "mean": expected.y}
    memory = torch.empty(6 * 4 * 24 * 4, dtype=torch.uint8)
    for pair in itertools.combinations(likes.items(), 2):
        views = {name: memory[: t.nbytes].view(t.dtype).view(t.shape) for name, t in pair}
        with pytest.raises(ValueError, match="overlaps out"):
            seam(f, x, post, comb, fn, scale, base, bias, weights, out=Out(**views))
