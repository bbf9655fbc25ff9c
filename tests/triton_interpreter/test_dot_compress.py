"""The Triton code generated from the dot compress kernels, tile by tile with its masks, against float64."""

from __future__ import annotations

import pytest
import torch
from tiles import assert_within, tiles

from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload
from helion_sinkhorn.ops.dot_compress import launch

# tiles of 16 rows, three of them a program; blocks smaller than D, of x and their tails
BLOCKS = dict.fromkeys(launch.KERNELS, (16,))
TILES = tiles(BLOCKS, **dict.fromkeys(BLOCKS, (("block_d", 16), ("rows", 48))))


# the interpreter multiplies the storage of bfloat16, not its values
@pytest.mark.parametrize(
    ("batch", "m", "d", "k", "has_z", "dtype", "precise"),
    [(2, 50, 20, 5, True, torch.float32, False), (2, 7, 33, 18, False, torch.float16, True)],
)
def test_value_and_gradients(batch, m, d, k, has_z, dtype, precise):
    workload = DotWorkload("asked", batch, m, d, k, frozenset(), "a test", dtype, has_z, precise)
    assert_within(workload, TILES)
