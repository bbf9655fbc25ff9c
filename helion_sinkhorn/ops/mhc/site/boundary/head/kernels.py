"""The Helion kernel bodies of hc_last with a head, whose weights depend on all columns of the new streams.

sums    partial sums of the head's projection and of squares, for some tokens and a chunk of columns
head    the weights from these sums, and the collapse of the new streams, made again; a token a program
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.mixes.kernels import given_parts, in_order, parts_of, product, turned
from helion_sinkhorn.ops.mhc.post.kernels import mixed, output_of, streams_of
from helion_sinkhorn.ops.mhc.site.boundary.kernels import side_by_side, weights_of
from helion_sinkhorn.ops.mhc.site.boundary.last.kernels import collapsed_of, normed
from helion_sinkhorn.ops.mhc.site.finish.kernels import root_mean_square
from helion_sinkhorn.ops.mhc.split.kernels import gate_of, sigmoids
from helion_sinkhorn.runtime.device_math import computed_once, multiply_add


def summed(tensors, kept, sums, place, x_parts, parts, how, interpret):
    """The sums of products and squares with those of a block of the new streams, as hc_post rounds them."""
    f, x, bias, fn = tensors
    total, square = sums
    tile_t, tile_m, tile_c = place
    given, streams = output_of(f, bias, tile_t, tile_c), streams_of(x, tile_t, tile_c, len(kept))
    nothing = hl.zeros([tile_t, tile_c], dtype=torch.float32)
    made = []
    for own in kept:
        made.append(computed_once(mixed(given, streams, own, how), how).to(x.dtype))
        wide = made[-1].to(torch.float32)
        # rounded products: what is fused into their sum would depend on the place in the block
        square = square + multiply_add(wide, wide, nothing, how).sum(1)
    rows = [hl.load(fn, [tile_m, o, tile_c]) for o in range(len(kept))]
    # several parts of all streams at once do not fit in registers
    groups = [(made, rows)] if x_parts == 1 else [([a], [b]) for a, b in zip(made, rows, strict=True)]
    for streams, weights in groups:
        left = given_parts(side_by_side(streams, interpret), x_parts)
        right = turned(parts_of(side_by_side(weights, interpret), parts))
        total = total + product(left, right, parts, interpret)
    return total, square


def hc_boundary_head_sums(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    fn: torch.Tensor,
    partials: torch.Tensor,
    squares: torch.Tensor,
    facts: hl.constexpr,
):
    """Write partials (T, splits, n), products of the new streams with fn (n, n, C), and squares (T, splits).

    The streams are made of f, x, post, comb and bias as in hc_post, and not stored.
    """
    n, columns, splits, chunk, width, block_m, x_parts, parts, transposed, how, interpret = facts
    tokens = x.size(0)
    hl.specialize((f.stride(), x.stride(), post.stride(), comb.stride(), fn.stride()))
    hl.specialize((partials.stride(), squares.stride()))
    for tile_s, tile_m, tile_t in hl.tile([splits, n, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        kept = weights_of(post, comb, None, tile_t, n, transposed)
        total = hl.zeros([tile_t, tile_m], dtype=torch.float32)
        square = hl.zeros([tile_t], dtype=torch.float32)
        for tile_c in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=width):
            total, square = summed(
                (f, x, bias, fn), kept, (total, square), (tile_t, tile_m, tile_c),
                x_parts, parts, how, interpret,
            )  # fmt: skip
        partials[tile_t, s, tile_m] = total
        squares[tile_t, s] = square


def gates_of(partials, squares, scale, base, t, n, splits, size, norm_eps, eps, how):
    """The weights of the collapse of token t, (1,) each."""
    total, square = in_order(partials, squares, t, splits)
    r, _k = root_mean_square(square, size, norm_eps, False)
    sigmoid, _other = sigmoids(gate_of(total * r.unsqueeze(1), base, scale, 0, how), how)
    o = hl.arange(total.size(1)).unsqueeze(0)
    # one is other than 0, so the sums are exact
    return [torch.where(o == k, sigmoid + eps, 0.0).sum(1) for k in range(n)]


def hc_boundary_head(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    partials: torch.Tensor,
    squares: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_weight: torch.Tensor | None,
    y: torch.Tensor,
    facts: hl.constexpr,
):
    """y (T, C) as in hc_boundary_last, by weights made of the sums partials (T, splits, n) and squares.

    squares are (T, splits), scale (1,) and base (1, n).
    """
    n, columns, splits, transposed, head_norm_eps, head_eps, eps, how = facts
    tokens = x.size(0)
    hl.specialize((x.size(2), f.size(1), y.size(1), f.stride(), x.stride(), post.stride(), comb.stride()))
    hl.specialize((partials.shape[1:], partials.stride(), squares.stride(), base.size(1), y.stride()))
    if bias is not None:
        # assigned: alone under an `if` it would leave the block empty
        _bias = hl.specialize(bias.size(0))
    for t in hl.tile(tokens, block_size=1):
        weights = gates_of(
            partials, squares, scale, base, t, n, splits, n * columns, head_norm_eps, head_eps, how
        )
        row = collapsed_of(f, x, post, comb, bias, weights, t, n, transposed, how)
        y[t, :] = normed(row, norm_weight, eps, columns).to(y.dtype)
