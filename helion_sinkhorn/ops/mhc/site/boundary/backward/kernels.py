"""The Helion kernel bodies of hc_boundary's backward.

    streams       df, dx, and sums over a chunk of columns, for some tokens and that chunk of all streams
    sums          dpost, dcomb and the gradient of the collapse's weights: the chunks added in their order
    projection    dfn of a share of the tokens, for a block of columns of a stream

The gradient of the new streams stays in registers, in float32.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.mixes.kernels import given_parts, parts_at, product, stream_gradient, turned
from helion_sinkhorn.ops.mhc.post.kernels import (
    coefficient,
    mixed,
    nothing_summed,
    of_pair,
    output_of,
    parted,
    streams_of,
)
from helion_sinkhorn.ops.mhc.site.boundary.backward.columns import (
    by_thread,
    made_again,
    through_norm,
    whole_sum,
    with_products,
)
from helion_sinkhorn.ops.mhc.site.boundary.kernels import each_stream, rows_of
from helion_sinkhorn.runtime.device_math import joined
from helion_sinkhorn.runtime.space import power_of_two


def take_gradients(tensors, upstream, coefficients, news, sums, place, facts):
    """Return the gradient of each new stream in float32, (tile_t, tile_c), and add products for dweights.

    G_o = dX'_o + weights_o dy + g fn_o + norm X'_o

    `news` are the new streams; if it is None, they are loaded.
    """
    dstreams, dy, y_weight, streams, split, of_weights = tensors
    norm, _, _, weights, factors = coefficients
    tile_t, tile_m, tile_c = place
    n, parts, together, _, how, interpret = facts
    totals = parted(sums, power_of_two(n))
    found = []
    if y_weight is not None:
        if news is None:
            news = [hl.load(streams, [tile_t, o, tile_c]).to(torch.float32) for o in range(n)]
        collapsed = through_norm(dy, y_weight, factors, weights, news, place, streams.dtype, how)
    elif dy is not None:
        # hl.load: inside a helper Helion takes indexing for an operation on the host
        collapsed = hl.load(dy, [tile_t, tile_c]).to(torch.float32)
    if dy is not None and of_weights is not None:
        of_collapse = by_thread(collapsed, interpret)
    if together:
        whole = product(upstream, rows_of(split, tile_m, tile_c, n, parts), parts, interpret)
        backs = each_stream(whole, n)
    for o in range(n):
        stored = hl.load(streams, [tile_t, o, tile_c]).to(torch.float32) if news is None else news[o]
        if dy is not None and of_weights is not None:
            totals[o] = with_products(totals[o], by_thread(stored, interpret), of_collapse, how)
        residual = norm if dstreams is None else hl.load(dstreams, [tile_t, o, tile_c])
        given = norm, residual, norm if dy is None else collapsed, weights[o]
        if together:
            # the last block is narrower in reference mode
            back = backs[o][:, : stored.size(1)] if interpret else backs[o]
        else:
            rows = [hl.load(split, [tile_m, k, o, tile_c]) for k in range(parts)]
            back = product(upstream, rows, parts, interpret)
        found.append(stream_gradient(back, stored, given, dstreams, dy, how))
    return found, joined(totals)


def give_to_streams(x, dx, of_comb, gs, columns, comb, olds, sums, place, facts):
    """Store dx of a block, and return sums with its products for dcomb, in the order of comb's entries.

    What has no tensor to be stored in is left out.  `olds` are the old streams; if None, they are loaded.
    """
    tile_t, _, tile_c = place
    n, _, _, transposed, how, interpret = facts
    totals = parted(sums, power_of_two(n * n))
    for i in range(n):
        if dx is not None:
            hl.store(dx, [tile_t, i, tile_c], mixed(gs[0], gs[1:], comb[i], how).to(dx.dtype))
        if of_comb is None:
            continue
        old = hl.load(x, [tile_t, i, tile_c]).to(torch.float32) if olds is None else olds[i]
        stream = by_thread(old, interpret)
        for o in range(n):
            k = o * n + i if transposed else i * n + o
            totals[k] = with_products(totals[k], stream, columns[o], how)
    return joined(totals)


def give_to_output(f, bias, df, of_post, gs, columns, post, given, sums, place, facts):
    """Store df of a block, and return sums with its products for dpost; either may have no tensor."""
    tile_t, _, tile_c = place
    n, _, _, _, how, interpret = facts
    if df is not None:
        hl.store(df, [tile_t, tile_c], mixed(gs[0], gs[1:], post, how).to(df.dtype))
    if of_post is None:
        return sums
    given = by_thread(output_of(f, bias, tile_t, tile_c) if given is None else given, interpret)
    totals = parted(sums, power_of_two(n))
    for o in range(n):
        totals[o] = with_products(totals[o], given, columns[o], how)
    return joined(totals)


def take_back(tensors, update, upstream, coefficients, sums, place, again, facts):
    """Store df and dx of a block, and return its sums for dpost, dcomb and dweights, a joined tensor each."""
    f, x, bias, df, dx, of_post, of_comb = update
    _, post, comb, *_ = coefficients
    n, _, _, _, how, interpret = facts
    sum_post, sum_comb, sum_weights = sums
    given = olds = news = None
    if again:
        tile_t, _, tile_c = place
        given, olds = output_of(f, bias, tile_t, tile_c), streams_of(x, tile_t, tile_c, n)
        news = made_again(given, olds, coefficients, n, x.dtype, how)
    gs, sum_weights = take_gradients(tensors, upstream, coefficients, news, sum_weights, place, facts)
    columns = [by_thread(g, interpret) for g in gs]
    sum_post = give_to_output(f, bias, df, of_post, gs, columns, post, given, sum_post, place, facts)
    sum_comb = give_to_streams(x, dx, of_comb, gs, columns, comb, olds, sum_comb, place, facts)
    return sum_post, sum_comb, sum_weights


def store_sums(partials, s, tile_t, total, count):
    """Store the sums over chunk s in partials (T, splits, count), if there are partials."""
    if partials is None:
        return
    for k, part in enumerate(parted(total, power_of_two(count))[:count]):
        hl.store(partials, [tile_t, s, k], whole_sum(part))


def coefficients_at(along, post, comb, weights, factors, tile_t, n, transposed):
    """along, post, comb, weights and factors as (tile,) in float32; comb by input, then by output stream."""
    return (
        hl.load(along, [tile_t]),
        [coefficient(post, tile_t, o) for o in range(n)],
        [[of_pair(comb, tile_t, i, o, transposed) for o in range(n)] for i in range(n)],
        [coefficient(weights, tile_t, o) for o in range(n)],
        None if factors is None else [hl.load(factors, [tile_t, k]) for k in range(2)],
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
    y_weight: torch.Tensor | None,
    factors: torch.Tensor | None,
    df: torch.Tensor | None,
    dx: torch.Tensor | None,
    of_post: torch.Tensor | None,
    of_comb: torch.Tensor | None,
    of_weights: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write df (T, C), dx (T, n, C) and sums over `chunk` columns each: with
        G_o = dX'_o + weights_o dy + (g fn)_o + along X'_o,
        of_post_o = <G_o, f + bias>,  of_comb_io = <x_i, G_o>,  of_weights_o = <X'_o, dy>

    of_post and of_weights are (T, splits, n), of_comb (T, splits, n n), and each of the five may be None.
    g (T, parts, M) and along (T,) are as in hc_mixes.  split holds the parts of fn, with M at most block_m:
    as `hc_boundary_split` writes them where one chain of matrix products takes all streams `together`, and
    otherwise as (M, parts, n, C).
    With y_weight (C,) dy is the gradient of a norm's result, whose factors (T, 2) are r and mean(h v) of each
    token (`hc_pre_normed_backward`); of_weights is None then.  With `again` X' is computed again instead of
    read, with the same bits.
    """
    (
        rows, n, columns, splits, chunk, width, block_m, parts, together, again, transposed, how, interpret,
    ) = facts  # fmt: skip
    tokens = x.size(0)
    hl.specialize((streams.stride(), split.stride(), f.stride(), x.stride(), post.stride(), comb.stride()))
    hl.specialize((g.stride(), weights.stride()))
    # assigned to a name: Helion would drop the bare call and leave the block of the `if` empty
    if df is not None:
        _df = hl.specialize(df.stride())
    if dx is not None:
        _dx = hl.specialize(dx.stride())
    if of_post is not None:
        _post = hl.specialize(of_post.stride())
    if of_comb is not None:
        _comb = hl.specialize(of_comb.stride())
    if of_weights is not None:
        _weights = hl.specialize(of_weights.stride())
    if factors is not None:
        _factors = hl.specialize(factors.stride())
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        coefficients = coefficients_at(along, post, comb, weights, factors, tile_t, n, transposed)
        upstream = parts_at(g, tile_t, tile_m, parts)
        zeros = hl.zeros([tile_t, 4], dtype=torch.float32)
        sum_post = nothing_summed(zeros, n)
        sum_comb = nothing_summed(zeros, n * n)
        sum_weights = nothing_summed(zeros, n)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=width):
            sum_post, sum_comb, sum_weights = take_back(
                (dstreams, dy, y_weight, streams, split, of_weights), (f, x, bias, df, dx, of_post, of_comb),
                upstream, coefficients, (sum_post, sum_comb, sum_weights), (tile_t, tile_m, tile_c), again,
                (n, parts, together, transposed, how, interpret),
            )  # fmt: skip
        store_sums(of_post, s, tile_t, sum_post, n)
        store_sums(of_comb, s, tile_t, sum_comb, n * n)
        store_sums(of_weights, s, tile_t, sum_weights, n)


def added(partials, tile_t, splits):
    """The sum over the chunks, one after another."""
    total = hl.load(partials, [tile_t, 0, slice(None)])
    for s in range(1, splits):
        total = total + hl.load(partials, [tile_t, s, slice(None)])
    return total


def hc_boundary_sums(
    of_post: torch.Tensor | None,
    of_comb: torch.Tensor | None,
    of_weights: torch.Tensor | None,
    dpost: torch.Tensor | None,
    dcomb: torch.Tensor | None,
    dweights: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write dpost (T, n), dcomb (T, n n) and dweights (T, n), the chunks added in their order.

    Each of them may be None.
    """
    (splits,) = facts
    if dpost is not None:
        tokens = dpost.size(0)
        _post = hl.specialize((dpost.size(1), of_post.stride()))
    elif dcomb is not None:
        tokens = dcomb.size(0)
    else:
        tokens = dweights.size(0)
        _weights = hl.specialize((dweights.size(1), of_weights.stride()))
    if dcomb is not None:
        _comb = hl.specialize((dcomb.size(1), of_comb.stride()))
    for tile_t in hl.tile(tokens):
        if dpost is not None:
            dpost[tile_t, :] = added(of_post, tile_t, splits).to(dpost.dtype)
        if dcomb is not None:
            dcomb[tile_t, :] = added(of_comb, tile_t, splits).to(dcomb.dtype)
        if dweights is not None:
            dweights[tile_t, :] = added(of_weights, tile_t, splits).to(dweights.dtype)


def hc_boundary_projection(g: torch.Tensor, streams: torch.Tensor, dfn: torch.Tensor, facts: hl.constexpr):
    """Write dfn (shares, M, n, C) = g' X' over the tokens of each share, a multiple of `unit`."""
    rows, n, columns, shares, unit, block_m, x_parts, parts, interpret = facts
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
