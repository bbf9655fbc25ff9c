"""Streams that are one in memory, as an expanded embedding: read as one, with the bits of a copy for each."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients
from hc_boundaries import boundary_inputs
from launches import noted_on_cpu

from helion_sinkhorn import hc_boundary, hc_mixes, hc_post, hc_pre, hc_site

TOKENS = 3


@pytest.fixture
def launched(monkeypatch):
    """(kernel, tensors) of each launch, in order."""
    return noted_on_cpu(
        monkeypatch, lambda name, given: (name, [a for a in given if isinstance(a, torch.Tensor)])
    )


def problem(n, c, dtype=torch.bfloat16, tokens=TOKENS):
    """(f, the streams as a view of one, post, comb, fn, scale, base, weights)."""
    (f, _, post, comb, fn, scale, base, _, weights), _ = boundary_inputs(tokens, n=n, c=c, dtype=dtype)
    one = randn(tokens, c, seed=20, dtype=dtype)
    return f, one.unsqueeze(-2).expand(tokens, n, c), post, comb, fn, scale, base, weights


def most_entries(launched, name):
    """The entries in memory of the largest tensor of activations that a kernel is given."""
    (tensors,) = [tensors for kernel, tensors in launched if kernel == name]
    return max(t.untyped_storage().nbytes() // t.element_size() for t in tensors if t.size(0) == TOKENS)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_a_site_reads_one_stream_for_all(launched, norm):
    n, c = 4, 1024
    _, x, *_, fn, scale, base, _ = problem(n, c)
    options = {"y_norm_weight": randn(c, seed=30)} if norm else {}
    found = hc_site(x, fn, scale, base, 3, **options)
    for name in ("hc_mixes_partials", "hc_boundary_finish" if norm else "hc_pre_forward"):
        assert most_entries(launched, name) == TOKENS * c
    assert found.residual.stride() == x.stride()
    assert_equal(found, hc_site(x.contiguous(), fn, scale, base, 3, **options))
    batched = hc_site(x.unflatten(0, (1, TOKENS)), fn, scale, base, 3, **options)
    assert_equal([t.squeeze(0) for t in batched], found)
    assert_equal([hc_mixes(x, fn)], [hc_mixes(x.contiguous(), fn)])


@pytest.mark.parametrize(("n", "own"), [(4, False), (4, True), (3, False), (5, False)])
def test_the_update_after_it_reads_one_stream(launched, n, own):
    c = 40
    f, x, post, comb, fn, scale, base, weights = problem(n, c)
    given = post, comb, None if own else weights, fn, scale, base, 3
    found = hc_boundary(f, x, *given)
    name = "hc_boundary_forward" if n <= 4 else "hc_post_forward"
    (tensors,) = [tensors for kernel, tensors in launched if kernel == name]
    assert tensors[1].stride() == (c, 0, 1)
    assert_equal(found, hc_boundary(f, x.contiguous(), *given))
    assert_equal([hc_post(f, x, post, comb)], [hc_post(f, x.contiguous(), post, comb)])
    assert_equal([hc_pre(x, weights)], [hc_pre(x.contiguous(), weights)])


@pytest.mark.parametrize(("n", "c"), [(3, 1024), (4, 40)])
def test_other_chunks_or_blocks_are_copied(launched, n, c):
    """A chunk that lies in two streams; rows of fn in blocks of 32 and not of 16."""
    *_, fn, _, _, _ = problem(n, c)
    x = problem(n, c)[1]
    assert_equal([hc_mixes(x, fn)], [hc_mixes(x.contiguous(), fn)])
    (tensors, _) = [tensors for body, tensors in launched if body == "hc_mixes_partials"]
    assert tensors[0].shape == (TOKENS, n * c)


def test_gradients_are_those_of_a_copy(launched):
    _, x, _, _, fn, scale, base, _ = problem(4, 1024)
    upstream = [randn(TOKENS, *shape, seed=40 + k) for k, shape in enumerate(((1024,), (4,), (4, 4)))]

    def site(x, fn):
        return hc_site(x, fn, scale, base, 3)[:3]

    of_one, of_copies = (values_and_gradients(site, (t, fn), upstream) for t in (x, x.contiguous()))
    assert_equal(of_one, of_copies)
