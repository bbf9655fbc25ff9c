"""Vectors in bfloat16 as 32-bit words of two entries, and loads of several steps at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.ops.linear_attention.problem import Problem
from helion_sinkhorn.ops.linear_attention.recurrent import launch
from helion_sinkhorn.ops.linear_attention.recurrent.launch import in_words, split, steps_together
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.wanted import all_of


def inputs(gates_dtype=torch.bfloat16):
    random = torch.Generator().manual_seed(1)
    shapes = [(2, 9, 2, 8), (2, 9, 2, 8), (2, 9, 2, 4), (2, 9, 2, 8), (2, 9, 2, 4)]
    q, k, v, gk, do = (torch.randn(shape, generator=random).bfloat16() for shape in shapes)
    return q, k, v, -gk.abs().to(gates_dtype), do


def results(q, k, v, gk, do, reverse=False, cu_seqlens=None):
    """What the forward and the backward give."""
    p = Problem(q, k, v, None, None, gk, None, 0.5, None, reverse, cu_seqlens)
    found = launch.backward(do, None, p, all_of(p.differentiable))
    return [*launch.forward(p), *(t for t in found if t is not None)]


@pytest.mark.parametrize("gates_dtype", [torch.bfloat16, torch.float32])
def test_words_change_no_bit(gates_dtype, monkeypatch):
    given = inputs(gates_dtype)
    monkeypatch.setattr(launch, "largest_run", lambda side, run: 4)
    taken = []
    monkeypatch.setattr(launch, "in_words", lambda x: taken.append(in_words(x)) or taken[-1])
    as_words = results(*given)
    assert torch.int32 in {t.dtype for t in taken if t is not None}
    monkeypatch.setattr(launch, "in_words", lambda x: x)
    assert all(map(torch.equal, as_words, results(*given)))


@pytest.mark.parametrize(("reverse", "packed"), [(False, True), (True, False)])
def test_steps_that_are_loaded_together_change_no_bit(reverse, packed, monkeypatch):
    given = inputs()
    if packed:
        given = [x.flatten(0, 1).unsqueeze(0) for x in given]
    cu_seqlens = torch.tensor([0, 9, 18], dtype=torch.int32) if packed else None
    found = {}
    for together in (1, 2, 8):
        monkeypatch.setattr(launch, "steps_together", lambda *_, together=together: together)
        found[together] = results(*given, reverse, cu_seqlens)
    for together in (2, 8):
        assert all(map(torch.equal, found[together], found[1])), together


@pytest.mark.parametrize(
    ("shape", "warps", "count", "together"),
    [
        ((9, 2, 8, 4), 4, 8, 4),
        ((9, 2, 8, 8), 4, 8, 2),
        ((9, 2, 8, 16), 4, 8, 1),
        ((9, 2, 8, 32), 4, 8, 1),
        ((9, 2, 2, 4), 4, 8, 8),
        ((9, 2, 8, 4), 8, 8, 8),
        ((9, 2, 8, 4), 8, 6, 2),
        ((0, 2, 8, 4), 4, 8, 4),
    ],
)
def test_a_load_has_a_number_for_each_thread(shape, warps, count, together):
    choice = Choice("linear_attention_walk", (("block_sizes", (16,)), ("num_warps", warps)), (), "a test")
    served = SimpleNamespace(choice=choice, device=DEVICES["h200"])
    assert steps_together(torch.empty(shape), served, count) == together


def test_words_hold_the_entries_of_a_run():
    (q, *_), run = inputs(), 4
    words = in_words(split(q, run))
    assert words.shape == (18, 2, 2, 2)
    assert torch.equal(words.view(torch.bfloat16), split(q, run))


@pytest.mark.parametrize(
    "x",
    [
        torch.zeros(1, 5, 2, 8),
        torch.zeros(1, 5, 2, 8, dtype=torch.float16),
        torch.zeros(81, dtype=torch.bfloat16)[1:].view(1, 5, 2, 8),
        torch.zeros(1, 5, 2, 9, dtype=torch.bfloat16)[..., :8],
        torch.zeros(1, 5, 8, 2, dtype=torch.bfloat16).mT,
    ],
    ids=["float32", "float16", "off by an entry", "odd strides", "columns first"],
)
def test_what_does_not_lie_so_stays_entries(x):
    vectors = split(x, 4)
    assert in_words(vectors) is vectors


def test_a_run_of_one_stays_entries():
    (q, *_) = inputs()
    assert in_words(split(q, 1)).dtype == torch.bfloat16
