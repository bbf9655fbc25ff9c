"""hc_split_sinkhorn in vectorised PyTorch: forward and exact backward from the mixes alone.

Sinkhorn's own vectorised path makes comb and its gradient; gates take sigmoid(-a), where 1 - sigmoid(a)
would cancel.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn import eager as sinkhorn


def _arguments(mixes, scale, base, n):
    """(mixes, s, a) in the computing dtype: a = mixes * s + base."""
    dtype = torch.float64 if mixes.dtype == torch.float64 else torch.float32
    mixes, scale, base = mixes.to(dtype), scale.to(dtype), base.to(dtype)
    sizes = torch.tensor((n, n, n * n), device=scale.device)
    s = scale.repeat_interleave(sizes, output_size=n * n + 2 * n)
    return mixes, s, (mixes * s + base).contiguous()


def _sigmoid(a):
    """By exp, whose bits do not depend on the place in a vector, as sigmoid's do."""
    e = a.abs().neg_().exp_()
    return torch.where(a < 0, e, 1.0) / (1 + e)


def forward(mixes, scale, base, n, n_iters, eps, post_mult, pre_eps, post_eps, comb_order, out_dtype):
    """(pre, post, comb); see api.hc_split_sinkhorn."""
    _, _, a = _arguments(mixes, scale, base, n)
    pre, post, comb = a.split((n, n, n * n), -1)
    comb = sinkhorn.forward(comb.unflatten(-1, (n, n)), n_iters, eps, "deepseek", "rows", out_dtype)
    return (
        (_sigmoid(pre) + pre_eps).to(out_dtype),
        (post_mult * _sigmoid(post) + post_eps).to(out_dtype),
        comb if comb_order == "io" else comb.mT.contiguous(),
    )


def backward(
    dpre, dpost, dcomb, mixes, scale, base, n, n_iters, eps, post_mult, pre_eps, post_eps, comb_order
):
    """(dmixes, dbase and dscale one behind the other); an upstream gradient that is None is 0."""
    dtype = mixes.dtype
    wide, s, a = _arguments(mixes, scale, base, n)
    da = torch.zeros_like(a)
    for k, (grad, factor) in enumerate(((dpre, 1.0), (dpost, post_mult))):
        if grad is not None:
            e = a[..., k * n : (k + 1) * n].abs().neg_().exp_()
            da[..., k * n : (k + 1) * n] = factor * grad.to(a.dtype) * e / (1 + e).square_()
    if dcomb is not None:
        dcomb = dcomb if comb_order == "io" else dcomb.mT
        logits = a[..., 2 * n :].unflatten(-1, (n, n))
        da[..., 2 * n :] = sinkhorn.backward(
            dcomb.to(a.dtype), logits, n_iters, eps, "deepseek", "rows"
        ).flatten(-2)
    each = (da * wide).reshape(-1, a.size(-1)).sum(0).split((n, n, n * n))
    sums = [da.reshape(-1, a.size(-1)).sum(0), *(part.sum().unsqueeze(0) for part in each)]
    return (da * s).to(dtype), torch.cat(sums)
