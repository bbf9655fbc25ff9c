"""The Triton code generated from the dot compress kernels, tile by tile with its masks, against float64."""

from __future__ import annotations

import pytest
import torch
from dot_compress_problem import inputs, worst_errors

from helion_sinkhorn.ops.dot_compress import launch as dot
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import Choice

BLOCK_D = 16
"""Smaller than D: blocks of x and their tails."""


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Tiles of 16 rows, three of them a program."""

    def choose(kernel, call, batch, device):
        config = ("block_sizes", (16,)), ("num_stages", 1), ("num_warps", 1)
        return Choice(kernel.name, config, (("block_d", BLOCK_D), ("rows", 48)), "a test")

    monkeypatch.setattr(door, "choose", choose)


# the interpreter multiplies the storage of bfloat16, not its values
@pytest.mark.parametrize(
    ("batch", "m", "d", "k", "has_z", "dtype", "parts"),
    [(2, 50, 20, 5, True, torch.float32, 1), (2, 7, 33, 18, False, torch.float16, 2)],
)
def test_value_and_gradients(batch, m, d, k, has_z, dtype, parts):
    given = x, y, z, grad = inputs(batch, m, d, k, has_z, dtype)
    out, b = dot.forward(x, y, z, parts)
    dx, dy, db = dot.backward(grad, x, y, b)
    errors = worst_errors({"out": out, "dx": dx, "dy": dy, "dz": db[:, 0]}, *given, parts)
    assert max(errors.values()) <= 1, errors
