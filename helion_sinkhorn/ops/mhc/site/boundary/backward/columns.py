"""Parts of hc_boundary's backward: the columns of a block in threads, new streams, the gradient of a norm."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.post.kernels import mixed
from helion_sinkhorn.ops.mhc.site.boundary.space import WIDTH
from helion_sinkhorn.runtime.device_math import multiply_add


def by_thread(value, interpret):
    """The WIDTH columns of a block as eight (tile, 4) tensors, one for each column that a thread holds.

    In the result of a matrix product four threads share a row, and thread q holds its columns 8 j + 2 q + k
    for 4 values of j and 2 of k.  Split in this way, a block stays in the registers where it is.
    """
    if interpret:  # the last block is narrower there
        value = torch.nn.functional.pad(value, (0, WIDTH - value.size(1)))
    whole = value.reshape(value.size(0), 4, 4, 2).permute(0, 2, 1, 3)
    pairs = [half.reshape(value.size(0), 4, 2, 2) for half in hl.split(whole)]
    return [column for pair in pairs for half in hl.split(pair) for column in hl.split(half)]


def with_products(total, a, b, how):
    """Add the products of columns to the sums of four threads one after another, as `by_thread` splits them.

    Each addition is an instruction written out, since what a compiler fuses into a sum depends on the place
    in the block.
    """
    for left, right in zip(a, b, strict=True):
        total = multiply_add(left, right, total, how)
    return total


def whole_sum(sums):
    """The sum (tile,) of four threads' sums (tile, 4), in a fixed order."""
    even, odd = hl.split(sums.reshape(sums.size(0), 2, 2))
    return add_up(even) + add_up(odd)


def add_up(pair):
    first, second = hl.split(pair)
    return first + second


def through_norm(du, y_weight, factors, weights, stored, place, dtype, how):
    """The gradient of y in float32 from du, the gradient of its norm's result.

    y is computed again and rounded to `dtype` as it was.  With v = r y the gradient is r (h - v mean(h v)),
    h = y_weight du.  Every sum of products is an instruction, for the same bits in any place of a block.
    """
    tile_t, _, tile_c = place
    y = stored[0] * 0.0
    for weight, stream in zip(weights, stored, strict=True):
        y = multiply_add(weight.unsqueeze(1), stream, y, how)
    r, along = (factor.unsqueeze(1) for factor in factors)
    v = y.to(dtype).to(torch.float32) * r
    scale = hl.load(y_weight, [tile_c]).to(torch.float32).unsqueeze(0)
    h = hl.load(du, [tile_t, tile_c]).to(torch.float32) * scale
    return multiply_add(-along, v, h, how) * r


def made_again(given, olds, coefficients, n, dtype, how):
    """The new streams of a block from f + bias and the old streams, rounded as stored, in float32."""
    _, post, comb, *_ = coefficients
    return [
        mixed(given, olds, [post[o], *[comb[i][o] for i in range(n)]], how).to(dtype).to(torch.float32)
        for o in range(n)
    ]
