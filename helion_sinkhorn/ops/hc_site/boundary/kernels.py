"""The Helion kernel body of hc_boundary: new streams, their collapse and their projection.

A program takes some tokens and a chunk of columns of all streams, so that the new streams are made once and
go to the matrix unit from registers.  The projection's sums over a chunk are partial, as those of hc_mixes.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.hc_mixes.kernels import given_parts, product, turned
from helion_sinkhorn.ops.hc_post.kernels import coefficient, coefficients_of, mixed, output_of, streams_of
from helion_sinkhorn.runtime.device_math import computed_once, multiply_add


def weights_of(post, comb, weights, tile_t, n, transposed):
    """[post_o, comb_0o, .. comb_(n-1)o, weights_o] of each new stream o, (tile,) each in float32."""
    return [
        [*coefficients_of(post, comb, tile_t, o, n, transposed), coefficient(weights, tile_t, o)]
        for o in range(n)
    ]


def cross(tensors, kept, sums, place, n, x_parts, parts, how, interpret):
    """Store a block of the new streams and of y, and return the sums of products and squares with it.

    Stream by stream, so that one new stream is in registers beside the old ones.  The projection and the
    collapse take it as it is rounded and stored.
    """
    f, x, bias, split, out, y = tensors
    total, square = sums
    tile_t, tile_m, tile_c = place
    given, streams = output_of(f, bias, tile_t, tile_c), streams_of(x, tile_t, tile_c, n)
    nothing = hl.zeros([tile_t, tile_c], dtype=torch.float32)
    collapsed = nothing
    for o, own in enumerate(kept):
        made = mixed(given, streams, own, how)
        rounded = computed_once(made, how).to(out.dtype)
        hl.store(out, [tile_t, o, tile_c], rounded)
        wide = rounded.to(torch.float32)
        # rounded products: what is fused into their sum would depend on the place in the block
        square = square + multiply_add(wide, wide, nothing, how).sum(1)
        collapsed = multiply_add(own[-1].unsqueeze(1), wide, collapsed, how)
        rows = turned([hl.load(split, [tile_m, k, o, tile_c]) for k in range(parts)])
        total = total + product(given_parts(rounded, x_parts), rows, parts, interpret)
    hl.store(y, [tile_t, tile_c], collapsed.to(y.dtype))
    return total, square


def hc_boundary_forward(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    weights: torch.Tensor,
    split: torch.Tensor,
    out: torch.Tensor,
    y: torch.Tensor,
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

    split (M, parts, n, C) is fn in parts, M at most block_m.
    """
    tokens = x.size(0)
    hl.specialize((f.stride(), x.stride(), post.stride(), comb.stride(), split.stride(), out.stride()))
    hl.specialize((partials.stride(), squares.stride()))
    block_c = hl.register_block_size(columns)
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        # in registers over all columns: of 4 streams 24 loads a thread and step less
        kept = weights_of(post, comb, weights, tile_t, n, transposed)
        total = hl.zeros([tile_t, tile_m], dtype=torch.float32)
        square = hl.zeros([tile_t], dtype=torch.float32)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=block_c):
            total, square = cross(
                (f, x, bias, split, out, y), kept, (total, square), (tile_t, tile_m, tile_c),
                n, x_parts, parts, how, interpret,
            )  # fmt: skip
        partials[tile_t, s, tile_m] = total
        squares[tile_t, s] = square
