"""The Helion kernel bodies of hc_boundary's backward.

    streams       some tokens and a chunk of columns of all streams: df, dx, and sums over the chunk
    sums          the chunks in their order: dpost, dcomb and the gradient of the collapse's weights
    projection    a block of columns of a stream for a share of the tokens: dfn of that share

The gradient of the new streams stays in registers, in float32.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.hc_mixes.kernels import given_parts, parts_at, product, stream_gradient, turned
from helion_sinkhorn.ops.hc_post.kernels import (
    coefficient,
    mixed,
    nothing_summed,
    of_pair,
    output_of,
    padded_join,
    parted,
)
from helion_sinkhorn.runtime.device_math import multiply_add
from helion_sinkhorn.runtime.space import power_of_two


def row_sum(a, b, how, interpret):
    """The sum over columns of a b, (tile,), of rounded products.

    What a compiler fuses into the sum would depend on the place in the block.  Helion would mask every
    product too; what lies beyond the tokens or the columns is 0, or is stored nowhere.
    """
    products = multiply_add(a, b, torch.zeros_like(a), how)
    if interpret:
        return products.sum(1)
    return hl.inline_triton("tl.sum({0}, 1)", (products,), hl.zeros([a.size(0)], dtype=torch.float32))


def new_gradients(dstreams, dy, upstream, norm, weights, stored, split, place, n, parts, how, interpret):
    """The gradient of each new stream in float32, (tile_t, tile_c), `stored` their values.

    G_o = dX'_o + weights_o dy + g fn_o + norm X'_o
    """
    tile_t, tile_m, tile_c = place
    found = []
    for o in range(n):
        # hl.load: in a helper Helion takes an index for an operation on the host
        rows = [hl.load(split, [tile_m, k, o, tile_c]) for k in range(parts)]
        residual = norm if dstreams is None else hl.load(dstreams, [tile_t, o, tile_c])
        given = norm, residual, norm if dy is None else dy, weights[o]
        back = product(upstream, rows, parts, interpret)
        found.append(stream_gradient(back, stored[o], given, dstreams, dy, how))
    return found


def give_back(x, dx, gs, comb, place, n, transposed, how, interpret):
    """Store dx of a block, and return its sums for dcomb, in the order of its entries."""
    tile_t, _, tile_c = place
    pairs = []
    for i in range(n):
        hl.store(dx, [tile_t, i, tile_c], mixed(gs[0], gs[1:], comb[i], how).to(dx.dtype))
        stream = hl.load(x, [tile_t, i, tile_c]).to(torch.float32)
        pairs.append([row_sum(stream, g, how, interpret) for g in gs])
    lines = zip(*pairs, strict=True) if transposed else pairs
    return [pair for line in lines for pair in line]


def take_back(tensors, results, upstream, norm, coefficients, place, n, parts, transposed, how, interpret):
    """Store df and dx of a block; return its sums for dpost, dcomb and dweights, those of each joined."""
    dstreams, dy, streams, split, f, x, bias = tensors
    df, dx = results
    post, comb, weights = coefficients
    tile_t, _, tile_c = place
    stored = [hl.load(streams, [tile_t, o, tile_c]).to(torch.float32) for o in range(n)]
    collapsed = None if dy is None else hl.load(dy, [tile_t, tile_c]).to(torch.float32)
    gs = new_gradients(
        dstreams, collapsed, upstream, norm, weights, stored, split, place, n, parts, how, interpret
    )
    hl.store(df, [tile_t, tile_c], mixed(gs[0], gs[1:], post, how).to(df.dtype))
    pairs = give_back(x, dx, gs, comb, place, n, transposed, how, interpret)
    given = output_of(f, bias, tile_t, tile_c)
    outputs = [row_sum(given, g, how, interpret) for g in gs]
    nothing = [outputs[0] * 0.0] * n
    of_weights = nothing if dy is None else [row_sum(t, collapsed, how, interpret) for t in stored]
    return padded_join(outputs), padded_join(pairs), padded_join(of_weights)


def store_parts_of(partials, s, tile_t, total, count):
    """Sums over chunk s, in partials (T, splits, count)."""
    for k, part in enumerate(parted(total, power_of_two(count))[:count]):
        hl.store(partials, [tile_t, s, k], part)


def coefficients_at(post, comb, weights, tile_t, n, transposed):
    """post, comb by input stream and then by output stream, and weights: (tile,) each in float32."""
    return (
        [coefficient(post, tile_t, o) for o in range(n)],
        [[of_pair(comb, tile_t, i, o, transposed) for o in range(n)] for i in range(n)],
        [coefficient(weights, tile_t, o) for o in range(n)],
    )


def hc_boundary_backward(
    dstreams: torch.Tensor | None,
    dy: torch.Tensor | None,
    g: torch.Tensor,
    along: torch.Tensor,
    streams: torch.Tensor,
    split: torch.Tensor,
    f: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    post: torch.Tensor,
    comb: torch.Tensor,
    weights: torch.Tensor,
    df: torch.Tensor,
    dx: torch.Tensor,
    of_post: torch.Tensor,
    of_comb: torch.Tensor,
    of_weights: torch.Tensor,
    rows: hl.constexpr,
    n: hl.constexpr,
    columns: hl.constexpr,
    splits: hl.constexpr,
    chunk: hl.constexpr,
    block_m: hl.constexpr,
    parts: hl.constexpr,
    transposed: hl.constexpr,
    how: hl.constexpr,
    interpret: hl.constexpr,
):
    """df (T, C) and dx (T, n, C), and sums over `chunk` columns each: with

        G_o = dX'_o + weights_o dy + (g fn)_o + along X'_o,
        of_post_o = <G_o, f + bias>,  of_comb_io = <x_i, G_o>,  of_weights_o = <X'_o, dy>

    of_post and of_weights are (T, splits, n), of_comb (T, splits, n n); split (M, parts, n, C) is fn in
    parts, M at most block_m, and g (T, parts, M) and along (T,) are as in hc_mixes.
    """
    tokens = x.size(0)
    hl.specialize((streams.stride(), split.stride(), f.stride(), x.stride(), post.stride(), comb.stride()))
    hl.specialize((g.stride(), weights.stride(), df.stride(), dx.stride()))
    hl.specialize((of_post.stride(), of_comb.stride(), of_weights.stride()))
    block_c = hl.register_block_size(columns)
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        coefficients = coefficients_at(post, comb, weights, tile_t, n, transposed)
        upstream = parts_at(g, tile_t, tile_m, parts)
        norm = along[tile_t]
        zeros = hl.zeros([tile_t], dtype=torch.float32)
        sum_post = nothing_summed(zeros, n)
        sum_comb = nothing_summed(zeros, n * n)
        sum_weights = nothing_summed(zeros, n)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=block_c):
            block_post, block_comb, block_weights = take_back(
                (dstreams, dy, streams, split, f, x, bias), (df, dx), upstream, norm, coefficients,
                (tile_t, tile_m, tile_c), n, parts, transposed, how, interpret,
            )  # fmt: skip
            sum_post = sum_post + block_post
            sum_comb = sum_comb + block_comb
            sum_weights = sum_weights + block_weights
        store_parts_of(of_post, s, tile_t, sum_post, n)
        store_parts_of(of_comb, s, tile_t, sum_comb, n * n)
        store_parts_of(of_weights, s, tile_t, sum_weights, n)


def added(partials, tile_t, splits):
    """The sum over the chunks, one after another."""
    total = hl.load(partials, [tile_t, 0, slice(None)])
    for s in range(1, splits):
        total = total + hl.load(partials, [tile_t, s, slice(None)])
    return total


def hc_boundary_sums(
    of_post: torch.Tensor,
    of_comb: torch.Tensor,
    of_weights: torch.Tensor,
    dpost: torch.Tensor,
    dcomb: torch.Tensor,
    dweights: torch.Tensor,
    splits: hl.constexpr,
):
    """dpost (T, n), dcomb (T, n n) and dweights (T, n) from the chunks, added in their order."""
    tokens = dpost.size(0)
    hl.specialize((dpost.size(1), dcomb.size(1), of_post.stride(), of_comb.stride()))
    for tile_t in hl.tile(tokens):
        dpost[tile_t, :] = added(of_post, tile_t, splits).to(dpost.dtype)
        dcomb[tile_t, :] = added(of_comb, tile_t, splits).to(dcomb.dtype)
        dweights[tile_t, :] = added(of_weights, tile_t, splits).to(dweights.dtype)


def hc_boundary_projection(
    g: torch.Tensor,
    streams: torch.Tensor,
    dfn: torch.Tensor,
    rows: hl.constexpr,
    n: hl.constexpr,
    columns: hl.constexpr,
    shares: hl.constexpr,
    unit: hl.constexpr,
    block_m: hl.constexpr,
    x_parts: hl.constexpr,
    parts: hl.constexpr,
    interpret: hl.constexpr,
):
    """dfn (shares, M, n, C) = g' X' over the tokens of each share, a multiple of `unit`."""
    tokens = streams.size(0)
    share = (tokens + shares * unit - 1) // (shares * unit) * unit
    hl.specialize((streams.stride(), g.stride(), dfn.stride()))
    block_t = hl.register_block_size(tokens)
    for tile_s, tile_m, tile_i, tile_c in hl.tile(
        [shares, rows, n, columns], block_size=[1, block_m, 1, None]
    ):
        i = tile_i.begin
        first = tile_s.begin * share
        total = hl.zeros([tile_c, tile_m], dtype=torch.float32)
        for tile_t in hl.tile(first, min(first + share, tokens), block_size=block_t):
            given = turned(given_parts(streams[tile_t, i, tile_c], x_parts))
            total = total + product(given, parts_at(g, tile_t, tile_m, parts), parts, interpret)
        dfn[tile_s.begin, tile_m, i, tile_c] = total.transpose(0, 1)
