"""The specifications of hc_site and hc_boundary: their parts one after another, in PyTorch."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.mixes.reference import hc_mixes
from helion_sinkhorn.ops.mhc.post.reference import hc_post
from helion_sinkhorn.ops.mhc.pre.reference import hc_pre
from helion_sinkhorn.ops.mhc.split.reference import hc_split_sinkhorn


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
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    form: str = "deepseek",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a sublayer's input and the coefficients of its output from the residual streams.

        mixes = hc_mixes(x, fn),  (pre, post, comb) = hc_split_sinkhorn(mixes, scale, base)
        y_c = sum_i pre_i x_ic, or its RMSNorm with y_norm_weight, as `hc_pre` makes them

    Args:
        x: (..., n, C), any floating dtype; all arithmetic is in that dtype.
        fn: (n^2 + 2n, n C).
        scale: (3,).
        base: (n^2 + 2n,).

    Returns:
        y (..., C), post (..., n), comb (..., n, n), and x itself.

    Source: Xie et al., mHC (arXiv 2512.24880), section 4.2.
    """
    # flattened, since one stream of C entries would be read as C merged streams
    mixes = hc_mixes(x.flatten(-2), fn, norm_eps, norm_weight, eps_outside=eps_outside)
    pre, post, comb = hc_split_sinkhorn(
        mixes, scale, base, x.size(-2), sinkhorn_iters, eps,
        post_mult=post_mult, pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order, form=form,
    )  # fmt: skip
    y = hc_pre(x, pre, y_norm_weight=y_norm_weight, y_norm_eps=y_norm_eps)
    return y, post, comb, x


def hc_boundary(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    pre_next: torch.Tensor | None,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    eps_outside: bool = False,
    y_norm_weight: torch.Tensor | None = None,
    y_norm_eps: float = 1e-6,
    form: str = "deepseek",
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Add a sublayer's output to the streams, and make the next sublayer's input and coefficients.

        streams = hc_post(f, x, post, comb, bias)
        (pre, post', comb') from streams, as `hc_site` makes them
        y_c = sum_i p_i streams_ic,  p = pre_next, or pre where that is None; or its RMSNorm

    Args:
        f: (..., C), any floating dtype; all arithmetic is in that dtype.
        x: (..., n, C).
        post: (..., n).
        comb: (..., n, n).
        pre_next: (..., n), or None.
        fn, scale, base: of the next site, as in `hc_site`.

    Returns:
        y (..., C), pre (..., n), post (..., n), comb (..., n, n) and the new streams (..., n, C).

    Source: Xie et al., mHC (arXiv 2512.24880), and the order of collapses in DeepSeek-V4.1's inference code.
    """
    streams = hc_post(f, x, post, comb, bias, comb_order=comb_order)
    mixes = hc_mixes(streams.flatten(-2), fn, norm_eps, norm_weight, eps_outside=eps_outside)
    pre, post, comb = hc_split_sinkhorn(
        mixes, scale, base, x.size(-2), sinkhorn_iters, eps,
        post_mult=post_mult, pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order, form=form,
    )  # fmt: skip
    weights = pre if pre_next is None else pre_next
    y = hc_pre(streams, weights, y_norm_weight=y_norm_weight, y_norm_eps=y_norm_eps)
    return y, pre, post, comb, streams
