"""The Helion kernel bodies of hc_boundary: new streams, their collapse and their projection.

    split       the parts of fn, WIDTH columns of every stream side by side
    forward     new streams, y, and sums over a chunk of columns, for some tokens

The new streams are made once and go to the matrix unit from registers, all streams in one product.  The
projection's sums over a chunk are partial sums, as in hc_mixes.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.mixes.kernels import given_parts, product, store_parts, turned
from helion_sinkhorn.ops.mhc.post.kernels import (
    coefficient,
    coefficients_of,
    mixed,
    output_of,
    padded_join,
    parted,
    streams_of,
)
from helion_sinkhorn.ops.mhc.site.boundary.space import WIDTH
from helion_sinkhorn.runtime.device_math import computed_once, multiply_add
from helion_sinkhorn.runtime.space import power_of_two


def hc_boundary_split(fn: torch.Tensor, split: torch.Tensor, facts: hl.constexpr):
    """Write the bfloat16 parts of fn (M, n C) to split (M, parts, size), in blocks of `width` columns.

    A block has `width` columns of each of `places` streams, stream by stream, and the blocks follow one
    another.  Columns and streams that fn does not have are zeros.
    """
    rows, n, columns, width, places, parts = facts
    hl.specialize((fn.stride(), split.size(2), split.stride()))
    for tile_m, tile_k in hl.tile([rows, split.size(2)]):
        k = tile_k.index
        o = k // width % places
        c = k // (width * places) * width + k % width
        there = (o < n) & (c < columns)
        given = hl.load(fn, [tile_m, torch.where(there, o * columns + c, 0)])
        store_parts(split, torch.where(there.unsqueeze(0), given, 0.0), tile_m, tile_k, parts)


def side_by_side(blocks, interpret):
    """The blocks (tile, WIDTH) of all streams joined, with columns in the order of `hc_boundary_split`."""
    if interpret:  # the last blocks are narrower there
        blocks = [torch.nn.functional.pad(b, (0, WIDTH - b.size(1))) for b in blocks]
    whole = padded_join(blocks)
    streams_first = whole.permute(0, *range(2, whole.dim()), 1)
    return streams_first.reshape(blocks[0].size(0), WIDTH * power_of_two(len(blocks)))


def each_stream(whole, n):
    """The blocks (tile, WIDTH) of n streams that `side_by_side` joined."""
    twos = [2] * (power_of_two(n).bit_length() - 1)
    streams_last = whole.reshape(whole.size(0), *twos, WIDTH)
    streams_last = streams_last.permute(0, len(twos) + 1, *range(1, len(twos) + 1))
    return parted(streams_last, power_of_two(n))[:n]


def rows_of(split, tile_m, tile_c, n, parts):
    """The parts of fn for a block of columns of all n streams, from what `hc_boundary_split` wrote."""
    places = power_of_two(n)
    columns = tile_c.begin * places + hl.arange(places * WIDTH)
    return [hl.load(split, [tile_m, k, columns]) for k in range(parts)]


def weights_of(post, comb, weights, tile_t, n, transposed):
    """[post_o, comb_0o, .. comb_(n-1)o, weights_o] of each new stream o, (tile,) each in float32.

    Without weights the last one is missing.
    """
    return [
        [
            *coefficients_of(post, comb, tile_t, o, n, transposed),
            *(() if weights is None else (coefficient(weights, tile_t, o),)),
        ]
        for o in range(n)
    ]


def cross(tensors, kept, sums, place, n, x_parts, parts, how, interpret):
    """Store a block of the new streams, and of y and the mean if they are given; return the sums of products
    and squares.

    The projection, the collapse and the mean take a new stream as it is rounded and stored.
    """
    f, x, bias, split, out, y, mean = tensors
    total, square = sums
    tile_t, tile_m, tile_c = place
    given, streams = output_of(f, bias, tile_t, tile_c), streams_of(x, tile_t, tile_c, n)
    nothing = hl.zeros([tile_t, tile_c], dtype=torch.float32)
    collapsed, averaged, made = nothing, nothing, []
    for o, own in enumerate(kept):
        rounded = computed_once(mixed(given, streams, own, how), how).to(out.dtype)
        hl.store(out, [tile_t, o, tile_c], rounded)
        wide = rounded.to(torch.float32)
        # rounded products: what is fused into their sum would depend on the place in the block
        square = square + multiply_add(wide, wide, nothing, how).sum(1)
        if y is not None:
            collapsed = multiply_add(own[-1].unsqueeze(1), wide, collapsed, how)
        if mean is not None:
            averaged = multiply_add(torch.full_like(wide, 1 / n), wide, averaged, how)
        made.append(rounded)
    if y is not None:
        hl.store(y, [tile_t, tile_c], collapsed.to(y.dtype))
    if mean is not None:
        hl.store(mean, [tile_t, tile_c], averaged.to(mean.dtype))
    rows = turned(rows_of(split, tile_m, tile_c, n, parts))
    total = total + product(given_parts(side_by_side(made, interpret), x_parts), rows, parts, interpret)
    return total, square


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
    mean: torch.Tensor | None,
    partials: torch.Tensor,
    squares: torch.Tensor,
    facts: hl.constexpr,
):
    """Write out (T, n, C) of f, x, post, comb, bias, as in hc_post, and y (T, C) of out and weights (T, n).

    mean (T, C) is that of the streams of out.  weights, y and mean may be None.  partials (T, splits, M) and
    squares (T, splits) are sums of out fn' and of the squares of out over `chunk` columns of each stream.
    split holds the parts of fn as `hc_boundary_split` writes them, with M at most block_m.
    """
    rows, n, columns, splits, chunk, width, block_m, x_parts, parts, transposed, how, interpret = facts
    tokens = x.size(0)
    hl.specialize((f.stride(), x.stride(), post.stride(), comb.stride(), split.stride(), out.stride()))
    hl.specialize((partials.stride(), squares.stride()))
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        # they stay in registers over all columns: with 4 streams a thread loads 24 numbers less a step
        kept = weights_of(post, comb, weights, tile_t, n, transposed)
        total = hl.zeros([tile_t, tile_m], dtype=torch.float32)
        square = hl.zeros([tile_t], dtype=torch.float32)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=width):
            total, square = cross(
                (f, x, bias, split, out, y, mean), kept, (total, square), (tile_t, tile_m, tile_c),
                n, x_parts, parts, how, interpret,
            )  # fmt: skip
        partials[tile_t, s, tile_m] = total
        squares[tile_t, s] = square
