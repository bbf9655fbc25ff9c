"""The Triton code generated from the bodies of hc_mixes, tile by tile, against float64."""

from __future__ import annotations

import pytest
import torch
from tiles import assert_within

from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK


def asked(n, c, m, tokens=133, **options):
    """Two tiles of the defaults and a tail, of tokens; of columns the calls below have several and a tail."""
    return MixesWorkload("asked", 1, frozenset(), "a test", n, c, m, tokens, **options)


@pytest.mark.parametrize(
    ("n", "c", "m", "options"),
    [
        (3, 111, 15, {}),
        (4, 40, 24, {"dtype": torch.float32}),
        (2, 97, 8, {"dtype": torch.float16}),
        (1, 130, 1, {"dtype": torch.float32, "precision": "tf32"}),
        (4, 24, 80, {}),
        (3, 20, 24, {"norm_eps": 1e-3, "eps_outside": True, "values": "zero token"}),
        # a last chunk of one column, and several chunks
        *((1, c, 3, {"tokens": 5}) for c in (CHUNK + 1, 2 * CHUNK + 70)),
        # shares of tokens that are empty, and that have several tiles
        *((2, 20, 24, {"tokens": tokens}) for tokens in (1, 2, 300)),
        # a head has fewer rows than a site: neither runs the other's program
        *((2, 25, m, {"tokens": 5}) for m in (24, 4, 24)),
    ],
    ids=str,
)
def test_values_and_gradients(n, c, m, options):
    assert_within(asked(n, c, m, **options), {})
