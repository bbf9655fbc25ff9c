"""The Triton code generated from the bodies of hc_pre, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from tiles import assert_within, tiles

from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.ops.mhc.pre import launch
from helion_sinkhorn.ops.mhc.pre.normed.space import SHARES

# (tokens, columns), and in the backward (columns, tokens): two tiles and a tail of each
TILES = tiles({launch.FORWARD: (2, 32), launch.BACKWARD: (32, 2)})
CALLS = [(n, torch.float32) for n in (1, 3, 4)] + [(4, torch.bfloat16), (5, torch.float16)]


def asked(batch, tokens, n, c, dtype=torch.bfloat16, **options):
    return HcPreWorkload("asked", batch, frozenset(), "a test", n, c, tokens, dtype, **options)


@pytest.mark.parametrize(("n", "dtype"), CALLS, ids=str)
def test_values_and_gradients(n, dtype):
    assert_within(asked(1, 5, n, 67, dtype), TILES)


@pytest.mark.parametrize("shape", [(1, 5, 4, 1), (1, 1, 2, 33), (2, 2, 2, 40)], ids=str)
def test_defaults_on_other_shapes(shape):
    assert_within(asked(*shape, coefficients=torch.bfloat16), {})


@pytest.mark.parametrize(("n", "dtype"), [(3, torch.float32), (4, torch.bfloat16)], ids=str)
def test_the_norm_behind_it(n, dtype):
    """More tokens than programs of the backward, so that some take two."""
    assert_within(asked(1, SHARES + 3, n, 24, dtype, y_norm=True), {})
