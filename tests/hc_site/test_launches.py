"""Launches of a site or boundary: fn prepared once, one that ends few tokens, and streams that are one."""

from __future__ import annotations

import gc

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from hc_boundaries import boundary, boundary_inputs
from launches import noted_on_cpu

from helion_sinkhorn import hc_boundary, hc_coeffs, hc_mixes, hc_post, hc_pre, hc_prepare, hc_site, nn
from helion_sinkhorn.ops.mhc import prepared
from helion_sinkhorn.ops.mhc.site.finish import launch
from helion_sinkhorn.ops.mhc.site.finish.space import FEW

SPLITS = "hc_mixes_split", "hc_boundary_split"


@pytest.fixture
def launched(monkeypatch):
    """The kernels of the launches, in order."""
    return noted_on_cpu(monkeypatch)


def splits(launched, call):
    """How many launches of a call make parts of fn, and its results."""
    launched.clear()
    results = call()
    return sum(name in SPLITS for name in launched), results


def calls(n=4, c=40):
    """Calls with fn, hc_boundary's and others, and fn."""
    f, x, post, comb, fn, scale, base, _, weights = boundary_inputs(5, n=n, c=c, dtype=torch.bfloat16)[0]
    return {
        "boundary of V4.1": lambda: hc_boundary(f, x, post, comb, weights, fn, scale, base, 3),
        "boundary of V4": lambda: hc_boundary(f, x, post, comb, None, fn, scale, base, 3),
        "site": lambda: hc_site(x, fn, scale, base, 3),
        "coefficients": lambda: hc_coeffs(x, fn, scale, base, 3),
    }, fn


@pytest.mark.parametrize("precision", ["float32", "tf32"])
@pytest.mark.parametrize("boundary", [True, False])
def test_calls_that_take_it_make_no_parts(launched, boundary, precision):
    by_name, fn = calls()
    expected = {name: splits(launched, call) for name, call in by_name.items()}
    assert {count for count, _ in expected.values()} == {1}
    hc_prepare(fn, boundary=boundary, precision=precision)
    for name, call in by_name.items():
        count, results = splits(launched, call)
        takes = name.startswith("boundary") == boundary and precision == "float32"
        assert count == (not takes), name
        assert_equal(results, expected[name][1])


SEAMS = {
    (True, False): ["hc_boundary_forward", "hc_mixes_reduce", "hc_split_sinkhorn_forward"],
    (True, True): ["hc_boundary_forward", "hc_boundary_finish"],
    (False, False): [
        "hc_boundary_forward", "hc_mixes_reduce", "hc_split_sinkhorn_forward", "hc_pre_forward"
    ],
    (False, True): ["hc_boundary_forward", "hc_boundary_finish"],
}  # fmt: skip
"""The launches of a seam whose fn is prepared, by (delayed_pre, with a norm)."""


@pytest.mark.parametrize(("delayed_pre", "norm"), SEAMS)
def test_the_launches_of_a_seam(launched, delayed_pre, norm):
    """One more where fn is not prepared, the first or second."""
    f, x, post, comb, fn, scale, base, _, weights = boundary_inputs(5, n=4, c=40, dtype=torch.bfloat16)[0]
    before, weight = weights if delayed_pre else None, torch.rand(40) if norm else None

    def seam():
        launched.clear()
        hc_boundary(f, x, post, comb, before, fn, scale, base, 3, y_norm_weight=weight)
        return [*launched]

    made = seam()
    hc_prepare(fn, boundary=True)
    assert seam() == SEAMS[delayed_pre, norm] == [name for name in made if name not in SPLITS]
    assert len(made) == len(SEAMS[delayed_pre, norm]) + 1


def test_a_change_is_noticed_and_prepared_anew_in_the_same_memory(launched):
    by_name, fn = calls()
    hc_prepare(fn)
    before = prepared.prepared(fn, "rows", 3)
    fn.mul_(2)
    count, results = splits(launched, by_name["site"])
    assert count == 1
    assert prepared.prepared(fn, "rows", 3) is None
    hc_prepare(fn)
    assert prepared.prepared(fn, "rows", 3) is before
    count, again = splits(launched, by_name["site"])
    assert count == 0
    assert_equal(again, results)


def test_a_module_takes_what_its_parameter_has(launched):
    site, x = nn.HyperConnection(40), torch.randn(5, 4, 40)
    with torch.inference_mode():
        expected = splits(launched, lambda: site.enter(x))
    hc_prepare(site.fn)
    with torch.inference_mode():
        count, results = splits(launched, lambda: site.enter(x))
    assert (expected[0], count) == (1, 0)
    assert_equal(results, expected[1])
    # training goes on: an optimizer changes fn
    y, *_ = site.enter(x.requires_grad_())
    y.sum().backward()
    torch.optim.SGD(site.parameters(), lr=0.1).step()
    assert splits(launched, lambda: site.enter(x))[0] == 1


def test_another_fn_and_a_norm_weight_take_nothing_of_it(launched):
    _, fn = calls()
    hc_prepare(fn)
    *_, scale, base, _, _ = boundary_inputs(5, n=4, c=40)[0]
    x = torch.randn(5, 4, 40)
    for other, weight in ((fn.clone(), None), (fn[:], None), (fn, torch.rand(160))):
        count, _ = splits(
            launched, lambda other=other, w=weight: hc_site(x, other, scale, base, 3, norm_weight=w)
        )
        assert count == 1


def test_a_capture_is_refused(launched, monkeypatch):
    """An eager call before the first replay would read memory that nothing has written."""
    fn = torch.randn(24, 160)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="call hc_prepare before the capture"):
        hc_prepare(fn)
    assert prepared.prepared(fn, "rows", 3) is None


def test_it_is_kept_while_fn_lives(launched):
    fn = torch.randn(24, 160)
    kept = len(prepared._kept)
    hc_prepare(fn)
    assert len(prepared._kept) == kept + 1
    del fn
    gc.collect()
    assert len(prepared._kept) == kept


def test_on_a_cpu_nothing_is_kept():
    fn = torch.randn(24, 160)
    assert hc_prepare(fn) is None
    assert prepared.prepared(fn, "rows", 3) is None


def inference_tensor():
    with torch.inference_mode():
        return torch.randn(24, 160)


REFUSED = {
    "no tensor": (lambda: hc_prepare([1.0]), TypeError, r"fn is a list; pass a torch.Tensor of shape \(n\^2"),
    "rows": (lambda: hc_prepare(torch.ones(23, 160)), ValueError, r"fn has shape \(23, 160\); pass"),
    "columns": (lambda: hc_prepare(torch.ones(24, 161)), ValueError, r"fn has shape \(24, 161\); pass"),
    "flag": (lambda: hc_prepare(torch.ones(24, 160), boundary=1), TypeError, "boundary is 1; pass"),
    "precision": (
        lambda: hc_prepare(torch.ones(24, 160), precision="bf16"), ValueError, "precision is 'bf16'; use"
    ),
    "inference": (lambda: hc_prepare(inference_tensor()), ValueError, "fn is an inference tensor"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "error", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


OPTIONS = {
    "as in models": {},
    "other constants": {
        "eps": 1e-3, "pre_eps": 0.25, "post_mult": 1.5, "norm_eps": 0.125, "y_norm_eps": 0.5,
    },
    "columns of coefficients first": {"comb_order": "oi"},
    "eps beside the root, one iteration": {"eps_outside": True, "norm_eps": 0.25, "sinkhorn_iters": 1},
}  # fmt: skip


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
    results = call()
    assert launched[1:] == [projection, "hc_boundary_finish"]
    launched.clear()
    monkeypatch.setattr(launch, "FEW", 4)
    expected = call()
    assert len(launched) == 5
    # exponentials of a CPU may differ in the last place between blocks of other sizes; GPUs' are compared in
    # test_gpu.py, bit for bit
    for a, b in zip(results, expected, strict=True):
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


# Streams that are one in memory, as an expanded embedding: read as one, with the bits of a copy for each

TOKENS = 3


@pytest.fixture
def taken(monkeypatch):
    """(kernel, tensors) of each launch, in order."""
    return noted_on_cpu(
        monkeypatch, lambda name, given: (name, [a for a in given if isinstance(a, torch.Tensor)])
    )


def problem(n, c, dtype=torch.bfloat16, tokens=TOKENS):
    """(f, the streams as a view of one, post, comb, fn, scale, base, weights)."""
    (f, _, post, comb, fn, scale, base, _, weights), _ = boundary_inputs(tokens, n=n, c=c, dtype=dtype)
    one = randn(tokens, c, seed=20, dtype=dtype)
    return f, one.unsqueeze(-2).expand(tokens, n, c), post, comb, fn, scale, base, weights


def most_entries(taken, name):
    """The entries in memory of the largest tensor of activations that a kernel is given."""
    (tensors,) = [tensors for kernel, tensors in taken if kernel == name]
    return max(t.untyped_storage().nbytes() // t.element_size() for t in tensors if t.size(0) == TOKENS)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_a_site_reads_one_stream_for_all(taken, norm):
    n, c = 4, 1024
    _, x, *_, fn, scale, base, _ = problem(n, c)
    options = {"y_norm_weight": randn(c, seed=30)} if norm else {}
    results = hc_site(x, fn, scale, base, 3, **options)
    for name in ("hc_mixes_partials", "hc_boundary_finish" if norm else "hc_pre_forward"):
        assert most_entries(taken, name) == TOKENS * c
    assert results.residual.stride() == x.stride()
    assert_equal(results, hc_site(x.contiguous(), fn, scale, base, 3, **options))
    batched = hc_site(x.unflatten(0, (1, TOKENS)), fn, scale, base, 3, **options)
    assert_equal([t.squeeze(0) for t in batched], results)
    assert_equal([hc_mixes(x, fn)], [hc_mixes(x.contiguous(), fn)])


@pytest.mark.parametrize(("n", "own"), [(4, False), (4, True), (3, False), (5, False)])
def test_the_update_after_it_reads_one_stream(taken, n, own):
    c = 40
    f, x, post, comb, fn, scale, base, weights = problem(n, c)
    given = post, comb, None if own else weights, fn, scale, base, 3
    results = hc_boundary(f, x, *given)
    name = "hc_boundary_forward" if n <= 4 else "hc_post_forward"
    (tensors,) = [tensors for kernel, tensors in taken if kernel == name]
    assert tensors[1].stride() == (c, 0, 1)
    assert_equal(results, hc_boundary(f, x.contiguous(), *given))
    assert_equal([hc_post(f, x, post, comb)], [hc_post(f, x.contiguous(), post, comb)])
    assert_equal([hc_pre(x, weights)], [hc_pre(x.contiguous(), weights)])


@pytest.mark.parametrize(("n", "c"), [(3, 1024), (4, 40)])
def test_other_chunks_or_blocks_are_copied(taken, n, c):
    """A chunk that lies in two streams; rows of fn in blocks of 32 and not of 16."""
    *_, fn, _, _, _ = problem(n, c)
    x = problem(n, c)[1]
    assert_equal([hc_mixes(x, fn)], [hc_mixes(x.contiguous(), fn)])
    (tensors, _) = [tensors for body, tensors in taken if body == "hc_mixes_partials"]
    assert tensors[0].shape == (TOKENS, n * c)


def test_gradients_are_those_of_a_copy(taken):
    _, x, _, _, fn, scale, base, _ = problem(4, 1024)
    upstream = [randn(TOKENS, *shape, seed=40 + k) for k, shape in enumerate(((1024,), (4,), (4, 4)))]

    def site(x, fn):
        return hc_site(x, fn, scale, base, 3)[:3]

    of_one, of_copies = (values_and_gradients(site, (t, fn), upstream) for t in (x, x.contiguous()))
    assert_equal(of_one, of_copies)
