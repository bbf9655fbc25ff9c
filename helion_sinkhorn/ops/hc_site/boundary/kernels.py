"""The Helion kernel body of hc_boundary: new streams, their collapse and their projection.

A program takes some tokens and a chunk of columns of all streams, so that the new streams are made once and
go to the matrix unit from registers.  The projection's sums over a chunk are partial, as those of hc_mixes.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.hc_mixes.kernels import given_parts, product, turned
from helion_sinkhorn.ops.hc_post.kernels import coefficient, new_streams
from helion_sinkhorn.runtime.device_math import multiply_add


def project(streams, split, total, square, out, tile_t, tile_m, tile_c, x_parts, parts, how, interpret):
    """(total, square) with the products and squares of a block of new streams, rounded and stored."""
    for o, stream in enumerate(streams):
        rounded = stream.to(out.dtype)
        hl.store(out, [tile_t, o, tile_c], rounded)
        wide = rounded.to(torch.float32)
        square = multiply_add(wide, wide, square, how)
        weights = turned([hl.load(split, [tile_m, k, o, tile_c]) for k in range(parts)])
        total = total + product(given_parts(rounded, x_parts), weights, parts, interpret)
    return total, square


def collapse(streams, weights, out, y, tile_t, tile_c, how):
    """y_c = sum_o weights_o out_oc of the streams as they are rounded, in their order."""
    if y is None:
        return
    total = streams[0] * 0.0
    for o, stream in enumerate(streams):
        weight = coefficient(weights, tile_t, o).unsqueeze(1)
        total = multiply_add(weight, stream.to(out.dtype).to(torch.float32), total, how)
    hl.store(y, [tile_t, tile_c], total.to(y.dtype))


def hc_boundary_forward(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor | None,
    split: torch.Tensor,
    out: torch.Tensor,
    y: torch.Tensor | None,
    partials: torch.Tensor,
    squares: torch.Tensor,
    rows: hl.constexpr,
    n: hl.constexpr,
    columns: hl.constexpr,
    splits: hl.constexpr,
    chunk: hl.constexpr,
    block_m: hl.constexpr,
    x_parts: hl.constexpr,
    parts: hl.constexpr,
    transposed: hl.constexpr,
    how: hl.constexpr,
    interpret: hl.constexpr,
):
    """out (T, n, C) of f, x, post, comb and bias, as in hc_post, and y (T, C) of out and weights (T, n).

    Of out there are sums over `chunk` columns of each stream: partials (T, splits, M) = out fn', and squares
    (T, splits).

    weights and y may be None.  split (M, parts, n, C) is fn in parts.  Of more rows than a block, several
    programs write the same streams.
    """
    tokens = x.size(0)
    hl.specialize((f.stride(), x.stride(), post.stride(), comb.stride(), split.stride(), out.stride()))
    hl.specialize((partials.stride(), squares.stride()))
    block_c = hl.register_block_size(columns)
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        total = hl.zeros([tile_t, tile_m], dtype=torch.float32)
        square = hl.zeros([tile_t, block_c], dtype=torch.float32)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=block_c):
            streams = new_streams(f, x, post, comb, bias, tile_t, tile_c, n, transposed, how)
            collapse(streams, weights, out, y, tile_t, tile_c, how)
            total, square = project(
                streams, split, total, square, out, tile_t, tile_m, tile_c, x_parts, parts, how, interpret
            )
        partials[tile_t, s, tile_m] = total
        squares[tile_t, s] = square.sum(1)
