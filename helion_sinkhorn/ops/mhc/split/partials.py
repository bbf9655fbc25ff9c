"""Reduce: how to make mixes of the partial sums of a projection."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Reduce(NamedTuple):
    """The sums of squares and the constants of the RMSNorm after a projection in `splits` partial sums.

        mixes = r sum_k partials_k,  q = sum_k squares_k / size,  r = 1 / sqrt(q + norm_eps)
    or with eps_outside r = 1 / (sqrt(q) + norm_eps).
    """

    squares: torch.Tensor
    """(splits, ...), in the dtype of the partial sums: the sum of the squares of each split's entries."""
    size: int
    """The number of entries that a token has in all splits: n times the hidden size."""
    norm_eps: float = 1e-6
    """0 or at least 1e-37."""
    eps_outside: bool = False
