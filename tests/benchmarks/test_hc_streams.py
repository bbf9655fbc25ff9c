"""benchmarks.hc_streams.speed: what its columns say, on a CPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.hc_streams import speed
from tritonbench_ops.hc_post import cases as hc_post
from tritonbench_ops.hc_pre import cases as hc_pre

CASES = {"hc_pre": hc_pre, "hc_post": hc_post}


def drawn(name):
    return speed.OPERATIONS[name].draw(300, 64, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("of", "mode"), [("forward", "fwd"), ("backward", "bwd")])
@pytest.mark.parametrize("name", speed.OPERATIONS)
def test_bytes_are_those_of_tritonbench(name, of, mode):
    given = drawn(name)
    inputs = given[:-1]
    assert speed.bytes_of(of, given) == CASES[name].bytes_moved(*inputs, mode)


@pytest.mark.parametrize("name", speed.OPERATIONS)
def test_errors_are_those_of_one_rounding(name, monkeypatch):
    monkeypatch.setattr(speed, "PIECE", 128)
    given, operation = drawn(name), speed.OPERATIONS[name]

    def numbers(f):
        words = [w.removesuffix(" x").split() for w in speed.errors(name, f, given)]
        assert [word for word, _ in words] == list(speed.NAMES[name])
        return {word: float(value) for word, value in words}

    for f in (operation.ours, operation.in_float32):
        assert all(v < 1e-6 if v < 0.5 else v <= 1.03 for v in numbers(f).values())

    def narrow(*inputs):
        return operation.ours(*(t.bfloat16() for t in inputs))

    assert max(numbers(narrow).values()) > 1.2
