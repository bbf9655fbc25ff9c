"""The specification of dot compress: its products as they are written, in PyTorch."""

from __future__ import annotations

import torch


def dot_compress(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None = None) -> torch.Tensor:
    """Compress M embeddings to K by their own products: out = x (x'y + z).

    Args:
        x: (..., M, D), any floating dtype; all arithmetic is in that dtype.
        y: (..., M, K).
        z: (..., D, K); 0 if left out.

    Source: pytorch/helion#1661.
    """
    b = x.mT @ y
    return x @ (b if z is None else b + z)
