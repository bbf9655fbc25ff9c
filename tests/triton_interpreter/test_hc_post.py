"""The Triton code generated from the bodies of hc_post, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import post_errors, post_inputs

from helion_sinkhorn.ops.mhc.post import launch
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.updates import Update

TOKENS = 5
GRADIENTS = ("df", "dx", "dpost", "dcomb")
BLOCKS = {launch.FORWARD: (2, 32), launch.BACKWARD: (8, 2)}
"""(tokens, columns), and in the backward (pieces of columns, tokens): tiles and a tail of each."""
BY_NIGHT = pytest.mark.nightly("half a minute and more of code generation for n^2 pairs of streams")
CALLS = [
    (1, 67, torch.float32, "io"), (3, 67, torch.float32, "oi"), (4, 136, torch.bfloat16, "oi"),
    pytest.param(4, 72, torch.float32, "io", marks=BY_NIGHT),
    pytest.param(5, 68, torch.float16, "io", marks=BY_NIGHT),
]  # fmt: skip


def choice(kernel):
    config = ("block_sizes", BLOCKS[kernel]), ("num_warps", 1)
    return Choice(kernel, config, (), "a test")


@pytest.mark.parametrize(("n", "c", "dtype", "order"), CALLS, ids=str)
def test_values_and_gradients(n, c, dtype, order):
    inputs = *given, grad = post_inputs(TOKENS, n=n, c=c, dtype=dtype, has_bias=n > 3)
    out = launch.forward(Update(*given), order, choice(launch.FORWARD))
    gradients = launch.backward(grad, Update(*given), order, choice=choice(launch.BACKWARD))
    errors = post_errors({"out": out, **dict(zip(GRADIENTS, gradients, strict=True))}, *inputs, order)
    assert max(errors.values()) <= 1, errors


def test_new_streams_over_the_old():
    """A program reads all streams of its columns before it writes one."""
    f, x, *others, _ = post_inputs(TOKENS, n=3, c=67, dtype=torch.float32)
    expected = launch.forward(Update(f, x, *others), "oi", choice(launch.FORWARD))
    assert torch.equal(launch.forward(Update(f, x, *others), "oi", choice(launch.FORWARD), x), expected)
    assert torch.equal(x, expected)


@BY_NIGHT
@pytest.mark.parametrize("n", [9, 16])
def test_gradients_of_programs_that_share_a_token(n):
    inputs = *given, grad = post_inputs(3, n=n, c=20, dtype=torch.bfloat16)
    found = launch.backward(grad, Update(*given), "io", choice=choice(launch.BACKWARD))
    errors = post_errors(dict(zip(GRADIENTS, found, strict=True)), *inputs)
    assert max(errors.values()) <= 1, errors


@pytest.mark.parametrize("shape", [(TOKENS, 2, 2), (1, 3, 33), (2, 2, 2, 40)], ids=str)
def test_defaults_on_other_shapes(shape):
    *lead, n, c = shape
    narrow = torch.bfloat16
    inputs = *given, grad = post_inputs(*lead, n=n, c=c, dtype=narrow, coefficients=narrow)
    found = {"out": launch.forward(Update(*given), "io")}
    found |= dict(zip(GRADIENTS, launch.backward(grad, Update(*given), "io"), strict=True))
    errors = post_errors(found, *inputs)
    assert max(errors.values()) <= 1, errors
