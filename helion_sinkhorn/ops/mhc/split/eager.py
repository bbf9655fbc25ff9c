"""hc_split_sinkhorn in vectorised PyTorch: forward and exact backward from the mixes only.

Sinkhorn's own vectorised path computes comb and its gradient.  The gradients of the gates take sigmoid(-a)
instead of 1 - sigmoid(a), which would cancel.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.ops.sinkhorn import eager as sinkhorn
from helion_sinkhorn.runtime.pieces import COMPUTING, sum_last
from helion_sinkhorn.runtime.wanted import Some


def _arguments(mixes, scale, base, n):
    """(mixes, s, a) in the computing dtype: a = mixes * s + base."""
    dtype = COMPUTING[mixes.dtype]
    mixes, scale, base = mixes.to(dtype), scale.to(dtype), base.to(dtype)
    sizes = torch.tensor((n, n, n * n), device=scale.device)
    s = scale.repeat_interleave(sizes, output_size=n * n + 2 * n)
    return mixes, s, (mixes * s + base).contiguous()


def _sigmoid(a):
    """sigmoid(a) by exp, whose bits do not depend on the place in a vector, as those of torch.sigmoid do."""
    e = a.abs().neg_().exp_()
    return torch.where(a < 0, e, 1.0) / (1 + e)


def forward(mixes, scale, base, options: SplitOptions, out_dtype):
    """(pre, post, comb); see api.hc_split_sinkhorn."""
    n, n_iters, eps, post_mult, pre_eps, post_eps, comb_order = options
    _, _, a = _arguments(mixes, scale, base, n)
    gates, comb = a.split((2 * n, n * n), -1)
    pre, post = _sigmoid(gates).chunk(2, -1)
    comb = sinkhorn.forward(comb.unflatten(-1, (n, n)), n_iters, eps, "deepseek", "rows", out_dtype)
    return (
        (pre + pre_eps).to(out_dtype),
        (post_mult * post + post_eps).to(out_dtype),
        comb if comb_order == "io" else comb.mT.contiguous(),
    )


def reduce(partials, given: Reduce):
    """(mixes, norms) of partial sums, added in the order of the splits; norms (..., 2) are r and k."""
    squares, size, norm_eps, eps_outside = given
    total, of_squares = partials[0], squares[0]
    for k in range(1, len(partials)):
        total, of_squares = total + partials[k], of_squares + squares[k]
    if eps_outside:
        root = (of_squares / size).sqrt()
        r = 1 / (root + norm_eps)
        k = torch.where(root > 0, -r / (size * root), 0.0)
    else:
        r = 1 / ((of_squares + size * norm_eps) / size).sqrt()
        k = -r * r / size
    return r.unsqueeze(-1) * total, torch.stack([r, k], -1)


def reduce_backward(dmixes, dnorms, mixes, norms, splits, size, eps_outside):
    """(dpartials, dsquares), expanded, since every split has the same; upstream gradients may be None.

    dpartials = r dmixes,  dsquares = (k / 2) sum_j dmixes_j mixes_j + (r k / 2) dr + k' dk
    """
    r, k = norms.unbind(-1)
    dpartials, dsquares = torch.zeros_like(mixes), torch.zeros_like(k)
    if dmixes is not None:
        dpartials = r.unsqueeze(-1) * dmixes
        terms = dmixes * mixes
        # where a second derivative may be requested, autograd sees this, and it takes no sum in place
        dsquares = 0.5 * k * (terms.sum(-1) if terms.requires_grad else sum_last(terms))
    if dnorms is not None:
        dr, dk = dnorms.unbind(-1)
        slope = 0.5 * (k * k - size * k**3 / (r * r)) if eps_outside else k * k
        dsquares = dsquares + 0.5 * r * k * dr + slope * dk
    return dpartials.expand(splits, *mixes.shape), dsquares.expand(splits, *k.shape)


def backward(
    upstream: CoefficientGradients,
    mixes,
    scale,
    base,
    options: SplitOptions,
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dmixes, dbase and dscale in one tensor), None for each that is not wanted."""
    dpre, dpost, dcomb = upstream
    n, n_iters, eps, post_mult, _, _, comb_order = options
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
    sums = None
    if wanted[1]:
        each = (da * wide).reshape(-1, a.size(-1)).sum(0).split((n, n, n * n))
        sums = torch.cat([da.reshape(-1, a.size(-1)).sum(0), *(part.sum().unsqueeze(0) for part in each)])
    return (da * s).to(dtype) if wanted[0] else None, sums
