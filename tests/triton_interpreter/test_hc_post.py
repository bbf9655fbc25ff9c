"""The Triton code generated from the bodies of hc_post, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from hc_streams import post_inputs
from tiles import assert_within, tiles

from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.ops.mhc.post import launch
from helion_sinkhorn.runtime.updates import Update

# (tokens, columns), and in the backward (pieces of columns, tokens): tiles and a tail of each
TILES = tiles({launch.FORWARD: (2, 32), launch.BACKWARD: (8, 2)})
BY_NIGHT = pytest.mark.nightly("half a minute and more of code generation for n^2 pairs of streams")
CALLS = [
    (1, 67, torch.float32, "io"), (3, 67, torch.float32, "oi"), (4, 136, torch.bfloat16, "oi"),
    pytest.param(4, 72, torch.float32, "io", marks=BY_NIGHT),
    pytest.param(5, 68, torch.float16, "io", marks=BY_NIGHT),
]  # fmt: skip


def asked(batch, tokens, n, c, dtype=torch.bfloat16, **options):
    return HcPostWorkload("asked", batch, frozenset(), "a test", n, c, tokens, dtype, **options)


@pytest.mark.parametrize(("n", "c", "dtype", "order"), CALLS, ids=str)
def test_values_and_gradients(n, c, dtype, order):
    assert_within(asked(1, 5, n, c, dtype, has_bias=n > 3, comb_order=order), TILES)


def test_new_streams_over_the_old():
    """A program reads all streams of its columns before it writes one."""
    f, x, *others, _ = post_inputs(5, n=3, c=67, dtype=torch.float32)
    choice = TILES[launch.FORWARD]
    expected = launch.forward(Update(f, x, *others), "oi", choice)
    assert torch.equal(launch.forward(Update(f, x, *others), "oi", choice, x), expected)
    assert torch.equal(x, expected)


@BY_NIGHT
@pytest.mark.parametrize("n", [9, 16])
def test_gradients_of_programs_that_share_a_token(n):
    assert_within(asked(1, 3, n, 20), TILES, ("df", "dx", "dpost", "dcomb"))


@pytest.mark.parametrize("shape", [(1, 5, 2, 2), (1, 1, 3, 33), (2, 2, 2, 40)], ids=str)
def test_defaults_on_other_shapes(shape):
    assert_within(asked(*shape, coefficients=torch.bfloat16, has_bias=True), {})
