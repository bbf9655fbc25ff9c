"""The Helion kernel body of hc_last: a sublayer's output and the streams to the collapse of the new streams.

A program has a token's row whole, all columns in registers, so that the old streams are read once and the new
ones never written.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.post.kernels import coefficient, coefficients_of, mixed
from helion_sinkhorn.ops.mhc.pre.normed.kernels import factor_of, streams_of
from helion_sinkhorn.runtime.device_math import multiply_add


def given_weights(weights, t, n):
    """The weights of a token's streams, (1,) each."""
    return [coefficient(weights, t, o) for o in range(n)]


def collapsed_of(f, x, post, comb, bias, weights, t, n, transposed, how):
    """The collapse of a token's new streams by the list of their weights, (1, C), as hc_pre has it.

    Each stream is rounded as hc_post stores it.
    """
    streams = streams_of(x, t, n)
    given = hl.load(f, [t, slice(None)]).to(torch.float32)
    if bias is not None:
        given = given + hl.load(bias, [slice(None)]).to(torch.float32).unsqueeze(0)
    total = given * 0.0
    for o, weight in enumerate(weights):
        made = mixed(given, streams, coefficients_of(post, comb, t, o, n, transposed), how)
        made = made.to(x.dtype).to(torch.float32)
        total = multiply_add(weight.unsqueeze(1), made, total, how)
    return total.to(x.dtype).to(torch.float32)


def normed(row, norm_weight, eps, columns):
    """The RMSNorm of a row (1, C), or without a weight the row itself."""
    if norm_weight is None:
        return row
    weight = hl.load(norm_weight, [slice(None)]).to(torch.float32).unsqueeze(0)
    return row * factor_of(row, eps, columns).unsqueeze(1) * weight


def hc_boundary_last(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor,
    norm_weight: torch.Tensor | None,
    y: torch.Tensor,
    facts: hl.constexpr,
):
    """y (T, C) of f (T, C), x (T, n, C), post (T, n), comb (T, n, n), bias (C,) and weights (T, n).

    With norm_weight (C,) y is the RMSNorm of that.
    """
    n, columns, transposed, eps, how = facts
    tokens = x.size(0)
    hl.specialize((x.size(2), f.size(1), y.size(1), f.stride(), x.stride(), post.stride(), comb.stride()))
    hl.specialize((weights.stride(), y.stride()))
    if bias is not None:
        # assigned: alone under an `if` it would leave the block empty
        _bias = hl.specialize(bias.size(0))
    for t in hl.tile(tokens, block_size=1):
        by = given_weights(weights, t, n)
        row = collapsed_of(f, x, post, comb, bias, by, t, n, transposed, how)
        y[t, :] = normed(row, norm_weight, eps, columns).to(y.dtype)
