"""The residual streams of mHC, as all operators on them take them."""

from __future__ import annotations

import torch

MOST_STREAMS = 16
COMB_ORDERS = ("io", "oi")
"""comb[..., input stream, output stream], as DeepSeek has it, and its transpose."""


def check_streams(x: torch.Tensor) -> None:
    """Raise ValueError unless x is (..., n, C) with 1 to MOST_STREAMS streams of at least one entry."""
    if x.dim() < 2 or not 1 <= x.shape[-2] <= MOST_STREAMS or x.shape[-1] < 1:
        raise ValueError(
            f"x has shape {tuple(x.shape)}; pass (..., n, C): n streams, 1 to {MOST_STREAMS}, of C entries, "
            "at least 1"
        )


def merged(x: torch.Tensor) -> torch.Tensor:
    """x as hc_mixes takes it: one stream of C entries reads as n C merged ones, and so it is merged."""
    return x.flatten(-2) if x.size(-2) == 1 else x
