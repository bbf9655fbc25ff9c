"""The specification of hc_split_sinkhorn: gates and iterations as they are written, in PyTorch."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.sinkhorn.reference import sinkhorn


def mixes_of(partials: torch.Tensor, reduce: Reduce) -> torch.Tensor:
    """Partial sums (splits, ..., n^2 + 2n) as mixes (..., n^2 + 2n): their sum times the norm's factor."""
    q = reduce.squares.sum(0) / reduce.size
    if reduce.eps_outside:
        r = 1 / (q.sqrt() + reduce.norm_eps)
    else:
        r = 1 / (q + reduce.norm_eps).sqrt()
    return r.unsqueeze(-1) * partials.sum(0)


def hc_split_sinkhorn(
    mixes: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    hc_mult: int = 4,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    *,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    form: str = "deepseek",
    reduce: Reduce | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Split the mixes of n = hc_mult residual streams into pre, post and comb.

    With a = mixes * s + base, s being scale[0] for the first n columns, scale[1] for the next n and scale[2]
    for the other n^2:
        pre  = sigmoid(a_pre) + pre_eps
        post = post_mult sigmoid(a_post) + post_eps
        comb = softmax(a_comb, rows) + eps, columns normalised, then sinkhorn_iters - 1 times rows and
               columns, each denominator + eps
    or in the log form what `sinkhorn` makes of a_comb, and a_comb itself for no iterations.

    Args:
        mixes: (..., n^2 + 2n), any floating dtype; all arithmetic is in that dtype.
        scale: (3,).
        base: (n^2 + 2n,).
        pre_eps: None for eps.
        comb_order: "io" for comb[input stream, output stream], "oi" for its transpose.
        reduce: if given, mixes are partial sums (splits, ..., n^2 + 2n), and the equations of Reduce make
            mixes of them.

    Source: Xie et al., mHC (arXiv 2512.24880), section 4.2, and DeepSeek-V4's hc_split_sinkhorn.
    """
    n = hc_mult
    if reduce is not None:
        mixes = mixes_of(mixes, reduce)
    s = torch.cat([scale[k].expand(size) for k, size in enumerate((n, n, n * n))])
    a = mixes * s + base
    pre = a[..., :n].sigmoid() + (eps if pre_eps is None else pre_eps)
    post = post_mult * a[..., n : 2 * n].sigmoid() + post_eps
    p = a[..., 2 * n :].unflatten(-1, (n, n))
    if sinkhorn_iters and form == "log":
        p = sinkhorn(p, sinkhorn_iters, form=form)
    elif sinkhorn_iters:
        p = p.softmax(-1) + eps
        p = p / (p.sum(-2, keepdim=True) + eps)
        for _ in range(sinkhorn_iters - 1):
            p = p / (p.sum(-1, keepdim=True) + eps)
            p = p / (p.sum(-2, keepdim=True) + eps)
    return pre, post, p if comb_order == "io" else p.mT
