"""The specification of hc_post: the sums as they are written, in PyTorch."""

from __future__ import annotations

import torch


def hc_post(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor | None,
    bias: torch.Tensor | None = None,
    *,
    comb_order: str = "io",
) -> torch.Tensor:
    """Mix n residual streams and add the output of a sublayer to each.

    out_oc = post_o (f_c + bias_c) + sum_i comb[i, o] x_ic

    Args:
        f: (..., C), any floating dtype; all arithmetic is in that dtype.
        x: (..., n, C).
        post: (..., n).
        comb: (..., n, n), "io" for comb[input stream, output stream], "oi" for its transpose; None for the
            identity.
        bias: (C,), or None for 0.

    Source: Xie et al., mHC (arXiv 2512.24880), equation 3.
    """
    given = f if bias is None else f + bias
    mixed = x if comb is None else (comb.mT if comb_order == "io" else comb) @ x
    return post.unsqueeze(-1) * given.unsqueeze(-2) + mixed
