"""The specification of hc_pre: the weighted sum as it is written, in PyTorch."""

from __future__ import annotations

import torch


def hc_pre(
    x: torch.Tensor,
    pre: torch.Tensor,
    *,
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
) -> torch.Tensor:
    """Collapse n residual streams to one, y_c = sum_i pre_i x_ic, or to the RMSNorm of that.

        u_c = w_c y_c / sqrt(sum_c y_c^2 / C + y_norm_eps)

    Args:
        x: (..., n, C), any floating dtype; all arithmetic is in that dtype.
        pre: (..., n).
        y_norm_weight: w (C,), or None for y itself.

    Source: Xie et al., mHC (arXiv 2512.24880), equation 3.
    """
    y = (pre.unsqueeze(-1) * x).sum(-2)
    if y_norm_weight is None:
        return y
    return y_norm_weight * y / (y.square().mean(-1, keepdim=True) + y_norm_eps).sqrt()
