"""The Helion kernel bodies of hc_post: new streams from a sublayer's output and the old ones, and gradients.

A program of the forward takes a block of columns of a few tokens.  One of the backward takes all columns of
its tokens block by block, so that sums stay in registers and the upstream gradient is read once.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import joined, multiply_add
from helion_sinkhorn.runtime.space import power_of_two


def coefficient(weights, tile_t, *place):
    """One number for each token, (tile,), in float32."""
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    return hl.load(weights, [tile_t, *place]).to(torch.float32)


def of_pair(weights, tile_t, i, o, transposed):
    """The coefficient of comb from input stream i to output stream o."""
    return coefficient(weights, tile_t, *((o, i) if transposed else (i, o)))


def output_of(f, bias, tile_t, tile_c):
    """f + bias in float32, (tile_t, tile_c)."""
    given = hl.load(f, [tile_t, tile_c]).to(torch.float32)
    return given if bias is None else given + hl.load(bias, [tile_c]).to(torch.float32).unsqueeze(0)


def streams_of(x, tile_t, tile_c, n):
    """The streams in float32, each loaded once."""
    return [hl.load(x, [tile_t, i, tile_c]).to(torch.float32) for i in range(n)]


def coefficients_of(post, comb, tile_t, o, n, transposed):
    """[post_o, comb_0o, .. comb_(n-1)o] of new stream o, (tile,) each in float32."""
    return [coefficient(post, tile_t, o), *[of_pair(comb, tile_t, i, o, transposed) for i in range(n)]]


def mixed(given, streams, weights, how):
    """A new stream: weights_0 given + sum_i weights_(1 + i) x_i in float32, added in this order."""
    total = weights[0].unsqueeze(1) * given
    for weight, stream in zip(weights[1:], streams, strict=False):
        total = multiply_add(weight.unsqueeze(1), stream, total, how)
    return total


def store_streams(f, x, post, comb, bias, out, tile_t, tile_c, n, transposed, how):
    """Store the new streams, each rounded once."""
    given, streams = output_of(f, bias, tile_t, tile_c), streams_of(x, tile_t, tile_c, n)
    for o in range(n):
        total = mixed(given, streams, coefficients_of(post, comb, tile_t, o, n, transposed), how)
        hl.store(out, [tile_t, o, tile_c], total.to(out.dtype))


def hc_post_forward(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    facts: hl.constexpr,
):
    """Write out (T, n, C) for f (T, C), x (T, n, C), post (T, n), comb (T, n, n) and bias (C,)."""
    n, columns, transposed, how = facts
    tokens = x.size(0)
    hl.specialize((f.stride(), x.stride(), post.stride(), comb.stride(), out.stride()))
    for tile_t, tile_c in hl.tile([tokens, columns]):
        store_streams(f, x, post, comb, bias, out, tile_t, tile_c, n, transposed, how)


def parted(whole, count):
    """The `count` tensors that `joined` made this one of."""
    if count == 1:
        return [whole]
    even, odd = (parted(half, count // 2) for half in hl.split(whole))
    return [part for pair in zip(even, odd, strict=True) for part in pair]


def nothing_summed(like, count):
    """Zeros in the shape of `count` joined tensors."""
    return joined([like * 0.0] * power_of_two(count))


def weighted(weights, terms, how):
    """The sum of weight * term, added one after another; a weight is one number for each token."""
    spread = [w.unsqueeze(1).unsqueeze(2) for w in weights]
    total = spread[0] * terms[0]
    for w, term in zip(spread[1:], terms[1:], strict=True):
        total = multiply_add(w, term, total, how)
    return total


def take_back(tensors, results, tiles, n, first, served, transposed, how):
    """Store df and dx of a block of columns, and return its sums for (dpost, dcomb), each joined in a tensor.

    A result without a tensor to be stored in is left out.

    The streams are taken one after another, and a thread has a piece of columns: some versions of Triton
    move a tile with an axis of streams to other threads, through shared memory.
    """
    grad, f, x, post, comb, bias = tensors
    df, dx, dpost, dcomb = results
    tile_t, tile_p = tiles
    if dpost is not None:
        given = hl.load(f, [tile_t, tile_p, slice(None)]).to(torch.float32)
        if bias is not None:
            given = given + hl.load(bias, [tile_p, slice(None)]).to(torch.float32).unsqueeze(0)
    gs = [hl.load(grad, [tile_t, o, tile_p, slice(None)]).to(torch.float32) for o in range(n)]
    if df is not None:
        gates = [coefficient(post, tile_t, o) for o in range(n)]
        hl.store(df, [tile_t, tile_p, slice(None)], weighted(gates, gs, how).to(df.dtype))
    pairs = []
    for i in range(served):
        place = [tile_t, first + i, tile_p, slice(None)]
        if dx is not None:
            weights = [of_pair(comb, tile_t, first + i, o, transposed) for o in range(n)]
            hl.store(dx, place, weighted(weights, gs, how).to(dx.dtype))
        if dcomb is not None:
            stream = hl.load(x, place).to(torch.float32)
            pairs += [(stream * g).sum(2) for g in gs]
    outputs = [] if dpost is None else [(given * g).sum(2) for g in gs]
    return padded_join(outputs) if outputs else None, padded_join(pairs) if pairs else None


def padded_join(parts):
    """The parts `joined`, with zeros up to a power of two."""
    return joined(parts + [parts[0] * 0.0] * (power_of_two(len(parts)) - len(parts)))


def store_sums(dpost, dcomb, sum_post, sum_comb, tile_t, n, first, served, transposed):
    """Store dpost and dcomb of `served` input streams, from sums of what `take_back` returns."""
    if dpost is not None:
        for o, total in enumerate(parted(sum_post.sum(1), power_of_two(n))[:n]):
            hl.store(dpost, [tile_t, o], total.to(dpost.dtype))
    if dcomb is not None:
        pairs = parted(sum_comb.sum(1), power_of_two(served * n))
        for k, total in enumerate(pairs[: served * n]):
            i, o = first + k // n, k % n
            hl.store(dcomb, [tile_t, o, i] if transposed else [tile_t, i, o], total.to(dcomb.dtype))


def hc_post_backward(
    grad: torch.Tensor,
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    df: torch.Tensor | None,
    dx: torch.Tensor | None,
    dpost: torch.Tensor | None,
    dcomb: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write df, dx, dpost and dcomb in the shapes of f, x, post and comb; each of them may be None.

    A thread takes a piece of c columns, up to 16 bytes: grad, x and dx are (T, n, C / c, c), f and df
    (T, C / c, c).  A program computes `served` input streams of its tokens, all n if they are at most 8.
    With more, `shares` programs compute a token together, and write the same numbers where their streams
    overlap.
    """
    n, served, shares, transposed, how = facts
    tokens, pieces = x.size(0), hl.specialize(x.size(2))
    hl.specialize((x.size(3), f.size(2), grad.stride(), f.stride(), x.stride(), post.stride()))
    hl.specialize(comb.stride())
    # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
    if df is not None:
        _df = hl.specialize(df.stride())
    if dx is not None:
        _dx = hl.specialize(dx.stride())
    if dpost is not None:
        _dpost = hl.specialize(dpost.stride())
    if dcomb is not None:
        _dcomb = hl.specialize(dcomb.stride())
    block_p = hl.register_block_size(pieces)
    for tile_t, tile_s in hl.tile([tokens, shares], block_size=[None, 1]):
        first = tile_s.begin * (n - served) // max(shares - 1, 1)
        zeros = hl.zeros([tile_t, block_p], dtype=torch.float32)
        sum_post = nothing_summed(zeros, n)
        sum_comb = nothing_summed(zeros, served * n)
        for tile_p in hl.tile(pieces, block_size=block_p):
            of_post, of_comb = take_back(
                (grad, f, x, post, comb, bias), (df, dx, dpost, dcomb), (tile_t, tile_p),
                n, first, served, transposed, how,
            )  # fmt: skip
            if dpost is not None:
                sum_post = sum_post + of_post
            if dcomb is not None:
                sum_comb = sum_comb + of_comb
        store_sums(dpost, dcomb, sum_post, sum_comb, tile_t, n, first, served, transposed)
