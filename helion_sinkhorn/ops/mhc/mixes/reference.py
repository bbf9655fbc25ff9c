"""The specification of hc_mixes: projection and norm as they are written, in PyTorch."""

from __future__ import annotations

import torch


def hc_mixes(
    x: torch.Tensor,
    fn: torch.Tensor,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    eps_outside: bool = False,
    prenorm: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Project the residual streams of every token on M rows, and divide by their root mean square.

    With w = norm_weight or 1 and K = n C:
        z_j = sum_i fn_ji w_i x_i,  q = sum_i x_i^2 / K,  r = 1 / sqrt(q + norm_eps),  mixes_j = r z_j
    and with eps_outside r = 1 / (sqrt(q) + norm_eps).  With prenorm z and q are returned.

    Args:
        x: (..., n, C) with n C = K, or (..., K), any floating dtype; all arithmetic is in that dtype.
        fn: (M, K).
        norm_weight: (K,), or None for ones.

    Returns:
        mixes (..., M), or (z (..., M), q (...)).

    Source: Xie et al., mHC (arXiv 2512.24880), section 4.2, and DeepSeek-V4's inference code.
    """
    size = fn.size(1)
    flat = x if x.size(-1) == size else x.flatten(-2)
    weighted = flat if norm_weight is None else flat * norm_weight
    if prenorm:
        return weighted @ fn.mT, flat.square().mean(-1)
    if eps_outside:
        # vector_norm and not the root of a mean: its derivative at 0 is 0, as the gradient of mixes requires
        norm = torch.linalg.vector_norm(flat, dim=-1, keepdim=True) / size**0.5 + norm_eps
    else:
        norm = (flat.square().mean(-1, keepdim=True) + norm_eps).sqrt()
    return weighted @ fn.mT / norm
