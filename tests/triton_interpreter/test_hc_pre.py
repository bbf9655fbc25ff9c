"""The Triton code generated from the bodies of hc_pre, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import pre_errors, pre_inputs

from helion_sinkhorn.ops.mhc.pre import launch
from helion_sinkhorn.runtime.kernel import Choice

# two tiles and a tail of tokens, and of columns
TOKENS, COLUMNS = 5, 67
BLOCKS = {launch.FORWARD: (2, 32), launch.BACKWARD: (32, 2)}
"""(tokens, columns), and in the backward (columns, tokens)."""


def choice(kernel):
    config = ("block_sizes", BLOCKS[kernel]), ("num_warps", 1)
    return Choice(kernel, config, (), "a test")


CALLS = [(n, torch.float32) for n in (1, 3, 4)] + [(4, torch.bfloat16), (5, torch.float16)]


@pytest.mark.parametrize(("n", "dtype"), CALLS, ids=str)
def test_the_collapse(n, dtype):
    inputs = x, pre, _ = pre_inputs(TOKENS, n=n, c=COLUMNS, dtype=dtype)
    errors = pre_errors({"y": launch.forward(x, pre, choice(launch.FORWARD))}, *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize(("n", "dtype"), CALLS, ids=str)
def test_gradients(n, dtype):
    inputs = x, pre, dy = pre_inputs(TOKENS, n=n, c=COLUMNS, dtype=dtype)
    dx, dpre = launch.backward(dy, x, pre, choice(launch.BACKWARD))
    errors = pre_errors({"dx": dx, "dpre": dpre}, *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("shape", [(TOKENS, 4, 1), (1, 2, 33), (2, 2, 2, 40)], ids=str)
def test_defaults_on_other_shapes(shape):
    *lead, n, c = shape
    inputs = x, pre, dy = pre_inputs(*lead, n=n, c=c, dtype=torch.bfloat16, coefficients=torch.bfloat16)
    dx, dpre = launch.backward(dy, x, pre)
    errors = pre_errors({"y": launch.forward(x, pre), "dx": dx, "dpre": dpre}, *inputs)
    assert max(errors.values()) <= 1, errors
