"""The specification of hc_pre: the weighted sum as it is written, in PyTorch."""

from __future__ import annotations

import torch


def hc_pre(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """Collapse n residual streams to one: y_c = sum_i pre_i x_ic.

    Args:
        x: (..., n, C), any floating dtype; all arithmetic is in that dtype.
        pre: (..., n).

    Source: Xie et al., mHC (arXiv 2512.24880), equation 3.
    """
    return (pre.unsqueeze(-1) * x).sum(-2)
