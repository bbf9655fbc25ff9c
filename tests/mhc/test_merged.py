"""Merged streams, (..., n C): the bits of streams apart, by views, in every function and module."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn, values_and_gradients

from helion_sinkhorn import (
    hc_boundary,
    hc_coeffs,
    hc_expand,
    hc_head,
    hc_mixes,
    hc_post,
    hc_pre,
    hc_site,
    nn,
    recompute_streams,
)

N, C, LEAD = 4, 12, (2, 3)
SITE = randn(24, N * C, seed=1, scale=0.2), torch.tensor([0.7, 1.1, 0.9]), randn(24, seed=2)
HEAD = SITE[0][:N], SITE[1][:1], SITE[2][:N]
PRE, POST, COMB = randn(*LEAD, N, seed=3), randn(*LEAD, N, seed=4), randn(*LEAD, N, N, seed=5)
F = randn(*LEAD, C, seed=6)

# from the streams, and from what they are a result of, whether they are merged
CALLS = {
    "hc_pre": lambda x, **how: (hc_pre(x, PRE, **how),),
    "hc_pre, by name": lambda x, **how: (hc_pre(pre=PRE, x=x, **how),),
    "hc_post": lambda x, **how: (hc_post(F, x, POST, COMB, **how),),
    "hc_post, without comb": lambda x, **how: (hc_post(F, x, POST, None, **how),),
    "hc_mixes": lambda x, **how: (hc_mixes(x, SITE[0]),),
    "hc_coeffs": lambda x, **how: hc_coeffs(x, *SITE, **how),
    "hc_site": lambda x, **how: hc_site(x, *SITE, **how),
    "hc_site, by name": lambda x, **how: hc_site(x=x, fn=SITE[0], scale=SITE[1], base=SITE[2], **how),
    "hc_boundary": lambda x, **how: hc_boundary(F, x, POST, COMB, PRE, *SITE, **how),
    "hc_head": lambda x, **how: (hc_head(x, *HEAD, **how),),
}  # fmt: skip


def streams(dtype=torch.float32, n=N):
    return randn(*LEAD, n, C, dtype=dtype)


def apart(t):
    """A result as it is without the option."""
    return t.unflatten(-1, (N, C)) if t.shape == (*LEAD, N * C) else t


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_merged_streams_have_the_bits_of_streams_apart(name, dtype):
    x, call = streams(dtype), CALLS[name]
    upstream = [randn(*y.shape, seed=9 + k, dtype=y.dtype) for k, y in enumerate(call(x))]
    expected = values_and_gradients(call, [x], upstream)
    results = call(x.flatten(-2), merged=True)
    # streams alone are merged
    assert [y.shape for y in results] == [
        (*LEAD, N * C) if y.shape == x.shape else y.shape for y in expected[: len(results)]
    ]
    of_merged = [g.view(y.shape) for g, y in zip(upstream, results, strict=True)]
    tensors = values_and_gradients(lambda x: call(x, merged=True), [x.flatten(-2)], of_merged)
    assert tensors[-1].shape == (*LEAD, N * C)
    assert_equal([apart(t) for t in tensors], expected)


@pytest.mark.parametrize(
    "call", [lambda x: hc_site(x, *SITE, merged=True), lambda x: connection()(x, with_residual=True)]
)
def test_the_residual_is_a_view(call):
    x = streams().flatten(-2)
    assert call(x)[-1].data_ptr() == x.data_ptr()


def test_rows_that_are_spread_out_need_no_copy():
    spread = torch.zeros(*LEAD, 2 * N * C)[..., : N * C].copy_(streams().flatten(-2))
    x = spread.requires_grad_()
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        y = hc_pre(x, PRE, merged=True)
    assert x.data_ptr() in {t.data_ptr() for t in kept}
    assert torch.equal(y, hc_pre(streams(), PRE))


def test_expanded_streams_may_be_merged():
    h = randn(*LEAD, C)
    assert torch.equal(hc_expand(h, N, merged=True), hc_expand(h, N).flatten(-2))
    with pytest.raises(TypeError, match="merged is 1; pass True or False"):
        hc_expand(h, N, merged=1)


SHAPE = r"x has shape \(2, 3, 4, 12\); with merged=True pass"
REFUSED = {
    "streams apart": (lambda: hc_pre(streams(), PRE, merged=True), SHAPE),
    "streams apart of a site": (lambda: hc_site(streams(), *SITE, merged=True), SHAPE),
    "other entries": (lambda: hc_pre(randn(*LEAD, 47), PRE, merged=True), r"\(2, 3, 47\); with merged=True"),
    "no entries": (lambda: hc_pre(randn(*LEAD, 0), PRE, merged=True), r"\(2, 3, 0\); with merged=True"),
    "other tokens": (lambda: hc_post(F, randn(7, N * C), POST, COMB, merged=True), r"\(7, 48\); with merged"),
    "a projection of a head": (
        lambda: hc_coeffs(streams().flatten(-2), *HEAD, merged=True), r"x has .* for fn of shape \(4, 48\)"
    ),
    "17 streams": (lambda: hc_pre(randn(2, 204), randn(2, 17), merged=True), r"\(2, 204\); with merged=True"),
    "a module's": (lambda: connection()(streams()), r"streams has .*; pass \(\.\.\., 48\), 4 streams of 12"),
    "a head's": (lambda: connection(nn.HyperHead)(streams()), r"streams has shape .*; pass \(\.\.\., 48\)"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_what_is_missing_or_no_tensor_is_said_as_without_the_option():
    for call, said in (
        (lambda: hc_pre(merged=True), "missing 2 required positional arguments"),
        (lambda: hc_pre([1.0], PRE, merged=True), "x is a list; pass a torch.Tensor"),
        (lambda: hc_pre(streams().flatten(-2), [1.0], merged=True), "pre is a list; pass a torch.Tensor"),
        (lambda: hc_pre(streams(), PRE, merged="yes"), "merged is 'yes'; pass True or False"),
        (lambda: hc_pre(streams().flatten(-2), PRE, x=PRE, merged=True), "multiple values for argument 'x'"),
        (lambda: nn.HyperConnection(C, merged=1), "merged is 1; pass True or False"),
        (lambda: nn.HyperHead(C, merged=1), "merged is 1; pass True or False"),
    ):
        with pytest.raises(TypeError, match=said):
            call()


def connection(kind=nn.HyperConnection, *first, **options):
    torch.manual_seed(0)
    return kind(*first, C, N, initializer_range=0.2, **{"merged": True, **options})


def of_sublayers(delayed_pre):
    """Three sublayers and the head, from streams to a hidden state, merged or not."""

    def model(x, **how):
        layers = [
            connection(nn.HyperSublayer, torch.nn.Linear(C, C), delayed_pre=delayed_pre, **how)
            for _ in range(3)
        ]
        torch.manual_seed(1)
        for layer in layers:
            torch.nn.init.normal_(layer.sublayer.weight, std=0.3)
            torch.nn.init.zeros_(layer.sublayer.bias)
        with recompute_streams(2):
            for layer in layers:
                x = layer(x)
        return (layers[-1].collapse(x) if delayed_pre else connection(nn.HyperHead, **how)(x),)

    return model


@pytest.mark.parametrize("delayed_pre", [False, True])
def test_modules_take_merged_streams(delayed_pre):
    x, model = streams(), of_sublayers(delayed_pre)
    expected = values_and_gradients(lambda x: model(x, merged=False), [x], [F])
    y, dx = values_and_gradients(model, [x.flatten(-2)], [F])
    assert_equal([y, dx], [expected[0], expected[1].flatten(-2)])


def test_a_boundary_without_an_update_takes_merged_streams():
    module, x = connection(nn.HyperBoundary), streams()
    results = module(None, x.flatten(-2), pre=PRE)
    assert results.residual.shape == (*LEAD, N * C)
    assert_equal(list(results[:4]), list(connection(nn.HyperBoundary, merged=False)(None, x, pre=PRE)[:4]))
    assert "merged=True" in repr(module)


def test_the_option_is_compiled_once_for_any_number_of_tokens():
    from torch._dynamo.testing import CompileCounterWithBackend

    def layer(x):
        x = x + hc_expand(x[:, :C], N, merged=True)
        y, post, comb, residual = hc_site(x, *SITE, merged=True)
        return hc_post(y, residual, post, comb, merged=True)

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for tokens in (5, 7):
        x = randn(tokens, N * C, seed=tokens)
        torch._dynamo.mark_dynamic(x, 0)
        assert torch.equal(compiled(x), layer(x))
    assert counter.frame_count == 1
    exported = torch.export.export(torch.nn.Sequential(connection(nn.HyperHead)), (x,))
    assert torch.equal(exported.module()(x), connection(nn.HyperHead)(x))
