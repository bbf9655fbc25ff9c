"""hc_split_sinkhorn by parts, gates in PyTorch and `sinkhorn`, for the forms that its kernels do not have."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.split.options import SplitOptions
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.torch_op import without_autocast


def in_parts(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    options: SplitOptions,
    form: str,
    implementation: str,
    out_dtype: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb) of checked arguments; comb is in a form of `sinkhorn`, or its logits."""
    n, n_iters, eps, *_, comb_order = options
    with without_autocast(mixes):
        pre, post, comb = gated(mixes, scale, base, options)
        comb = comb.unflatten(-1, (n, n))
        if n_iters:
            by = {"form": form} if form == "log" else {"form": form, "eps": eps}
            comb = sinkhorn(comb, n_iters, **by, implementation=implementation)
        if comb_order == "oi":
            comb = comb.mT
    return tuple(t.to(out_dtype or t.dtype) for t in (pre, post, comb.contiguous()))


def gated(
    mixes: torch.Tensor, scale: torch.Tensor, base: torch.Tensor, options: SplitOptions
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, logits) of mixes (..., 2n + K): the gates, and the K logits that comb is made of."""
    n, _, _, post_mult, pre_eps, post_eps, _ = options
    dtype, sizes = COMPUTING[mixes.dtype], (n, n, mixes.size(-1) - 2 * n)
    s = torch.cat([scale[k].expand(size) for k, size in enumerate(sizes)])
    pre, post, logits = (mixes.to(dtype) * s.to(dtype) + base.to(dtype)).split(sizes, -1)
    return gate(pre) + pre_eps, post_mult * gate(post) + post_eps, logits


def gate(a: torch.Tensor) -> torch.Tensor:
    """sigmoid(a) by exp(-|a|), so that autograd has sigmoid(-a) for 1 - sigmoid(a), which would cancel.

    In float32 the derivative of torch.sigmoid is 0 from a = 17 on, where the true one is 4e-8.  Its last bits
    also depend on a number's place in a vector, and so on the tokens around.
    """
    negative = a < 0
    e = torch.where(negative, a, -a).exp()
    return torch.where(negative, e, 1.0) / (1 + e)
