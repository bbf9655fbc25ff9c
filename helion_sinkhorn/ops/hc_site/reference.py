"""The specification of hc_site: its parts one after another, in PyTorch."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.hc_mixes.reference import hc_mixes
from helion_sinkhorn.ops.hc_pre.reference import hc_pre
from helion_sinkhorn.ops.hc_split_sinkhorn.reference import hc_split_sinkhorn


def hc_site(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    eps_outside: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a sublayer's input and the coefficients of its output from the residual streams.

        mixes = hc_mixes(x, fn),  (pre, post, comb) = hc_split_sinkhorn(mixes, scale, base)
        y_c = sum_i pre_i x_ic

    Args:
        x: (..., n, C), any floating dtype; all arithmetic is in that dtype.
        fn: (n^2 + 2n, n C).
        scale: (3,).
        base: (n^2 + 2n,).

    Returns:
        y (..., C), post (..., n), comb (..., n, n), and x itself.

    Source: Xie et al., mHC (arXiv 2512.24880), section 4.2.
    """
    # merged: one stream of C entries would be read as C merged ones
    mixes = hc_mixes(x.flatten(-2), fn, norm_eps, norm_weight, eps_outside=eps_outside)
    pre, post, comb = hc_split_sinkhorn(
        mixes, scale, base, x.size(-2), sinkhorn_iters, eps,
        post_mult=post_mult, pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order,
    )  # fmt: skip
    return hc_pre(x, pre), post, comb, x
