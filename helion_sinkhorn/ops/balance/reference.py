"""The specification of sinkhorn_balance: the steps as they are written, in PyTorch."""

from __future__ import annotations

import math

import torch


def sinkhorn_balance(
    update: torch.Tensor,
    *,
    steps: int = 11,
    zero_row_threshold: float = 1e-3,
    eps: float = 1e-20,
    scale: str = "row_rms",
    first: str = "rows",
) -> torch.Tensor:
    """Rows and columns divided in turn by their L2 norms plus eps, of the rows above the threshold.

    Args:
        update: (..., m, n), any floating dtype; all arithmetic is in that dtype.

    Source: DeepSeek-V4.1, section 2.5, algorithm 1.
    """
    m, n = update.shape[-2:]
    norms = update.norm(dim=-1, keepdim=True)
    u = update.masked_fill(norms <= zero_row_threshold * norms.mean(-2, keepdim=True), 0.0)
    axes = (-1, -2) if first == "rows" else (-2, -1)
    for k in range(steps):
        u = u / (u.norm(dim=axes[k % 2], keepdim=True) + eps)
    return u * {"row_rms": math.sqrt(n), "col_rms": math.sqrt(m), "none": 1.0}[scale]
