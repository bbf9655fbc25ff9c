"""The Helion kernel bodies of hc_pre: the weighted sum of a token's streams, and its gradients.

A program of the forward takes a block of columns of a few tokens.  One of the backward takes all columns of
its tokens block by block, so that sums stay in registers and the upstream gradient is read once.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import multiply_add


def weighted(x, pre, tile_t, tile_c, n, how):
    """sum_i pre_i x_i in float32, added in the order of the streams."""
    total = hl.zeros([tile_t, tile_c], dtype=torch.float32)
    for i in range(n):
        # hl.load: inside a helper Helion takes indexing for an operation on the host
        weight = hl.load(pre, [tile_t, i]).to(torch.float32).unsqueeze(1)
        total = multiply_add(weight, hl.load(x, [tile_t, i, tile_c]).to(torch.float32), total, how)
    return total


def hc_pre_forward(x: torch.Tensor, pre: torch.Tensor, y: torch.Tensor, facts: hl.constexpr):
    """Write y (T, C) for x (T, n, C) and pre (T, n)."""
    n, columns, how = facts
    tokens = x.size(0)
    hl.specialize((x.stride(), pre.stride(), y.stride()))
    for tile_t, tile_c in hl.tile([tokens, columns]):
        y[tile_t, tile_c] = weighted(x, pre, tile_t, tile_c, n, how).to(y.dtype)


def hc_pre_backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    dx: torch.Tensor | None,
    dpre: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write dx (T, n, C) = pre dy and dpre (T, n) = sum over columns of dy x; either of them may be None.

    `padded` is n rounded up to a power of two.
    """
    n, columns, padded, how = facts
    tokens = x.size(0)
    hl.specialize((dy.stride(), x.stride(), pre.stride()))
    if dpre is not None:
        # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
        _fixed = hl.specialize(dpre.stride())
    block_c = hl.register_block_size(columns)
    for tile_t, tile_i in hl.tile([tokens, n], block_size=[None, padded]):
        weights = pre[tile_t, tile_i].to(torch.float32).unsqueeze(2)
        sums = hl.zeros([tile_t, tile_i, block_c], dtype=torch.float32)
        for tile_c in hl.tile(columns, block_size=block_c):
            g = dy[tile_t, tile_c].to(torch.float32).unsqueeze(1)
            if dpre is not None:
                sums = multiply_add(g, x[tile_t, tile_i, tile_c].to(torch.float32), sums, how)
            if dx is not None:
                dx[tile_t, tile_i, tile_c] = (weights * g).to(dx.dtype)
        if dpre is not None:
            dpre[tile_t, tile_i] = sums.sum(2).to(dpre.dtype)
