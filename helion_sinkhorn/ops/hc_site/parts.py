"""The operators of hc_site, made of those of its parts: what torch.func.vmap maps in their place."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.hc_mixes import torch_op as of_mixes
from helion_sinkhorn.ops.hc_pre import torch_op as of_pre
from helion_sinkhorn.ops.hc_split_sinkhorn import torch_op as of_split

SERVES = "helion"


def forward(
    x, fn, scale, base, weights, n_iters, eps, norm_eps, post_mult, pre_eps, post_eps, comb_order, precision,
    eps_outside,
):  # fmt: skip
    """(y, pre, post, comb, mixes, norms)."""
    mixes, norms = of_mixes.call(x, fn, norm_eps, eps_outside, precision, SERVES)
    pre, post, comb = of_split.call(
        mixes, scale, base, x.size(-2), n_iters, eps, post_mult, pre_eps, post_eps, comb_order, SERVES,
        torch.float32,
    )  # fmt: skip
    y = of_pre.call(x, pre if weights is None else weights, SERVES)
    return y, pre, post, comb, mixes, norms


def backward(
    dresidual, dy, dpre, dpost, dcomb, x, fn, scale, base, weights, mixes, norms, own, n_iters, eps, norm_eps,
    post_mult, pre_eps, post_eps, comb_order, precision, eps_outside,
):  # fmt: skip
    """(dx, dfn, dbase and dscale one behind the other, dweights)."""
    terms, dweights = [dresidual], weights.new_zeros(0)
    if dy is not None:
        of_collapse, dweights = of_pre.call_backward(dy, x, weights, SERVES)
        terms.append(of_collapse)
        if own:
            dpre, dweights = dweights if dpre is None else dpre + dweights, weights.new_zeros(0)
    dmixes, sums = of_split.call_backward(
        dpre, dpost, dcomb, mixes, scale, base, x.size(-2), n_iters, eps, post_mult, pre_eps, post_eps,
        comb_order, SERVES,
    )  # fmt: skip
    of_projection, dfn = of_mixes.call_backward(dmixes, x, fn, mixes, norms, precision, SERVES)
    dx = sum((t for t in terms if t is not None), of_projection)
    return dx, dfn, sums, dweights
