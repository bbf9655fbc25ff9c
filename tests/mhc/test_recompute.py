"""recompute_streams: the bits of every gradient stay, and the streams are not kept."""

from __future__ import annotations

import contextlib
import gc
from unittest import mock

import pytest
import torch
from autograd_calls import assert_equal, randn
from mhc_layers import Layers, checkpointed

from benchmarks.memory import LiveBytes
from helion_sinkhorn import hc_expand, hc_post, recompute_streams
from helion_sinkhorn.mhc import recompute

N, C = 4, 16


def layers_of(count, delayed=False, dtype=torch.float32, order="io"):
    torch.manual_seed(0)
    options = {
        "norm": torch.nn.Identity(),
        "comb_order": order,
        "initializer_range": 0.2,
        "sinkhorn_iters": 3,
    }
    return Layers(count, C, N, delayed=delayed, head=True, dtype=dtype, **options)


def gradients(model, h, every=None, backward_inside=False):
    """The result, and the gradients of the input and of every parameter."""
    h = h.clone().requires_grad_()
    leaves = [h, *(p for p in model.parameters())]
    upstream = randn(*h.shape, seed=3, dtype=h.dtype, device=h.device)
    with contextlib.ExitStack() as block:
        if every is not None:
            block.enter_context(recompute_streams(every))
        out = model(h)
        if not backward_inside:
            block.close()
        of_leaves = torch.autograd.grad(out, leaves, upstream, allow_unused=True)
    return out.detach(), *(torch.zeros(()) if t is None else t for t in of_leaves)


@pytest.mark.parametrize("delayed", [False, True], ids=["sites", "boundaries"])
@pytest.mark.parametrize(
    ("every", "dtype", "device"),
    [
        *((every, torch.float32, "cpu") for every in (1, 2, 3, 4, 100)),
        # a boundary's kernel and hc_post's make the same streams
        *(pytest.param(3, dtype, "cuda", marks=pytest.mark.gpu) for dtype in (torch.float32, torch.bfloat16)),
    ],
    ids=str,
)
def test_gradients_have_the_bits_they_have_without_it(every, dtype, device, delayed):
    model = layers_of(7, delayed, dtype).to(device)
    h = randn(5 if device == "cpu" else 150, 2, C, dtype=dtype, device=device)
    assert_equal(gradients(model, h, every), gradients(model, h))


@pytest.mark.parametrize("inside", [False, True])
def test_bfloat16_the_other_order_of_comb_and_a_backward_inside_the_block(inside):
    model, h = layers_of(5, dtype=torch.bfloat16, order="oi"), randn(6, C, dtype=torch.bfloat16)
    assert_equal(gradients(model, h, 3, inside), gradients(model, h))


def remade(monkeypatch):
    """How often streams are made again, counted in a list."""
    calls = []
    monkeypatch.setattr(recompute, "hc_post", lambda *a, **k: calls.append(a) or hc_post(*a, **k))
    return calls


@pytest.mark.parametrize(("every", "again"), [(1, 0), (2, 4), (4, 6), (100, 7)])
def test_all_but_every_kth_update_is_made_again_once(monkeypatch, every, again):
    calls = remade(monkeypatch)
    # the streams of the last update are an argument of the head
    gradients(layers_of(7), randn(3, C), every)
    assert len(calls) == again


def spared(model, h, every):
    """How many streams fewer are held after a forward than without it."""
    held = []
    for k in (1, every):
        with LiveBytes() as live, recompute_streams(k):
            out = model(h.requires_grad_())
        held.append(live.held)
        del out
        gc.collect()
    return (held[0] - held[1]) / (h.numel() * N * 4)


@pytest.mark.parametrize("delayed", [False, True], ids=["sites", "boundaries"])
def test_only_every_kth_streams_are_held_after_the_forward(delayed):
    model, h = layers_of(12, delayed), randn(64, C)
    # updates 4, 8, 12 are kept of 12, or 6 and 12
    assert spared(model, h, 4) == 9
    assert spared(model, h, 6) == 10


@pytest.mark.parametrize("inside", [False, True])
def test_the_backward_holds_one_span_at_a_time_and_frees_all(inside):
    count, tokens, every = 16, 64, 4
    model, h = layers_of(count), randn(tokens, C).requires_grad_()
    peaks, left = {}, {}
    for k in (1, every):
        with LiveBytes() as live, contextlib.ExitStack() as block:
            block.enter_context(recompute_streams(k))
            out = model(h)
            if not inside:
                block.close()
            out.sum().backward()
            del out
            left[k] = live.held
        peaks[k] = live.peak
        model.zero_grad()
    streams = tokens * N * C * 4
    # without: 16; with: 4 kept and 3 made again, and at most one of both on the way
    assert peaks[1] - peaks[every] >= (count - count // every - every) * streams
    assert left[every] == left[1]


def test_streams_that_are_changed_behind_their_update_are_kept():
    def changed(h, every):
        x = hc_expand(h, N)
        post, comb = randn(3, N, seed=1), randn(3, N, N, seed=2)
        with recompute_streams(every):
            for k in range(5):
                x = hc_post(h * k, x, post, comb)
                if k % 2:
                    x = x.mul_(0.5)
                h = h + x.square().sum(-2)
        return torch.autograd.grad(h, leaf, torch.ones_like(h))

    leaf = randn(3, C).requires_grad_()
    assert_equal(changed(leaf, 100), changed(leaf, 1))


@pytest.mark.parametrize("changed", ["f", "post"])
def test_what_was_changed_in_place_since_raises(changed):
    leaves = {"f": randn(3, C).requires_grad_(), "post": randn(3, N, seed=1).requires_grad_()}
    used, comb = {name: leaf * 1 for name, leaf in leaves.items()}, randn(3, N, N, seed=2)
    with recompute_streams(8):
        out = hc_post(used["f"], hc_expand(leaves["f"], N), used["post"], comb).square().sum()
    with torch.no_grad():
        used[changed].add_(1)
    with pytest.raises(RuntimeError, match=r"changed in place after the forward saved it \(version 1"):
        out.backward()


def test_a_second_backward_and_checkpointed_sublayers():
    model, h = layers_of(6), randn(4, C)
    expected = gradients(model, h)
    checkpointed(layer.sublayer for layer in model.layers)
    assert_equal(gradients(model, h, 4), expected)
    h.requires_grad_()
    with recompute_streams(4):
        out = model(h)
    upstream = randn(*h.shape, seed=3)
    first = torch.autograd.grad(out, h, upstream, retain_graph=True)
    assert_equal(torch.autograd.grad(out, h, upstream), first)
    assert_equal(first, expected[1:2])


@pytest.mark.parametrize("every", [2, 3, 4])
def test_checkpoints_around_layers_keep_what_they_kept(monkeypatch, every):
    """Their updates were recorded: what the checkpoint frees was held, and streams were made twice."""
    model, h, calls = layers_of(8), randn(64, C).requires_grad_(), remade(monkeypatch)
    expected = gradients(model, h)
    checkpointed(model.layers)
    with LiveBytes() as live:
        out = model(h)
        held = live.held
    del out
    gc.collect()
    with LiveBytes() as live, recompute_streams(every):
        out = model(h)
        # no argument of an update: the smallest, f, has C entries a token
        assert live.held - held < 64 * C * 4
    del out
    assert_equal(gradients(model, h, every), expected)
    assert not calls


def test_graphs_that_are_dropped_inside_the_block_are_freed():
    """Evaluation with gradients, or a skipped step: arguments of updates were held to the block's end."""
    model, h = layers_of(8), randn(64, C).requires_grad_()
    held = []
    with LiveBytes() as live, recompute_streams(4):
        for _ in range(4):
            out = model(h)
            held.append(live.held)
            del out
            gc.collect()
    assert held[1:] == held[1:2] * 3
    assert held[3] < 1.5 * held[0]


def test_without_a_gradient_nothing_is_recorded(monkeypatch):
    model, h = layers_of(3), randn(4, C)
    calls = remade(monkeypatch)
    with torch.no_grad(), recompute_streams(2):
        out = model(h)
    assert torch.equal(out, model(h))
    with torch.inference_mode(), recompute_streams(2):
        model(h)
    assert not calls


@pytest.mark.parametrize("inside", [False, True])
def test_compiled_parts_keep_what_they_kept(inside):
    """The block is around what is compiled, or in it."""
    model, h = layers_of(4), randn(4, C)
    expected, forward = gradients(model, h), model.forward

    def blocked(h):
        with recompute_streams(2):
            return forward(h)

    if inside:
        model.forward = blocked
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    recomputed = gradients(compiled, h, None if inside else 2)
    torch.testing.assert_close(recomputed, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("comb", [randn(64, N, N, seed=2), None], ids=["comb", "without comb"])
def test_storages_that_are_used_again_are_not_taken_for_streams(comb):
    """Freed streams leave their memory to other tensors of the same size."""
    h, post = randn(64, C).requires_grad_(), randn(64, N, seed=1)

    def gradient():
        x = hc_expand(h, N)
        total = 0.0
        for _ in range(20):
            x = hc_post(h, x, post, comb, h[0]).tanh()
            total = total + (x * x.sin()).sum()
        return torch.autograd.grad(total, h)

    expected = gradient()
    with recompute_streams(7):
        assert_equal(gradient(), expected)


@pytest.mark.parametrize(
    ("every", "error", "said"),
    [(0, ValueError, "every is 0"), (-1, ValueError, "every is -1"), (True, TypeError, "every is True"),
     (2.0, TypeError, "every is 2.0")],
)  # fmt: skip
def test_what_every_may_be(every, error, said):
    with pytest.raises(error, match=f"{said}; pass an int of at least 1"), recompute_streams(every):
        pass


def test_the_kernel_of_a_boundary(monkeypatch):
    """Its new streams are saved before anybody announces them."""
    from launches import SITES, kernels_on_cpu

    from helion_sinkhorn.ops.mhc.post import api

    kernels_on_cpu(monkeypatch, SITES)
    monkeypatch.setattr(api, "implementation_for", lambda *asked: "helion")
    model, h = layers_of(4, delayed=True), randn(3, C)
    expected = gradients(model, h)
    calls = remade(monkeypatch)
    assert_equal(gradients(model, h, 3), expected)
    # of four updates the third is kept; the fourth is the last hc_post's, and hc_pre takes it
    assert len(calls) == 3
    assert spared(model, h, 3) == 3


def test_streams_that_another_cuda_stream_made_again_are_waited_for(monkeypatch):
    """Two sites that saved the same streams, one of them on a side stream: gradients do not order them."""
    main, side, made = mock.Mock(), mock.Mock(), mock.Mock(is_cuda=True)
    remade = object.__new__(recompute._Remade)
    remade.made, remade.x = None, mock.Mock(source=None)
    remade.finished, remade.make = None, lambda: made
    for current in (side, main, side):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device, current=current: current)
        assert remade.streams() is made
    assert side.mock_calls == [mock.call.record_event()]
    assert main.mock_calls == [mock.call.wait_event(side.record_event.return_value)]
    made.record_stream.assert_called_once_with(main)
