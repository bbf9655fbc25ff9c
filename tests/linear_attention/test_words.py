"""Vectors in bfloat16 as 32-bit words of two entries."""

from __future__ import annotations

import pytest
import torch

from helion_sinkhorn.ops.linear_attention.recurrent import launch
from helion_sinkhorn.ops.linear_attention.recurrent.launch import in_words, split


def inputs(gates_dtype=torch.bfloat16):
    random = torch.Generator().manual_seed(1)
    shapes = [(2, 9, 2, 8), (2, 9, 2, 8), (2, 9, 2, 4), (2, 9, 2, 8), (2, 9, 2, 4)]
    q, k, v, gk, do = (torch.randn(shape, generator=random).bfloat16() for shape in shapes)
    return q, k, v, -gk.abs().to(gates_dtype), do


@pytest.mark.parametrize("gates_dtype", [torch.bfloat16, torch.float32])
def test_words_change_no_bit(gates_dtype, monkeypatch):
    q, k, v, gk, do = inputs(gates_dtype)
    shared = q, k, v, None, None, gk, None, 0.5, None, False, None

    def run():
        o, end = launch.forward(*shared)
        return [o, end, *(t for t in launch.backward(do, None, *shared) if t is not None)]

    monkeypatch.setattr(launch, "largest_run", lambda side, run: 4)
    taken = []
    monkeypatch.setattr(launch, "in_words", lambda x: taken.append(in_words(x)) or taken[-1])
    as_words = run()
    assert torch.int32 in {t.dtype for t in taken if t is not None}
    monkeypatch.setattr(launch, "in_words", lambda x: x)
    assert all(map(torch.equal, as_words, run()))


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
