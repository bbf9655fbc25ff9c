"""The Helion kernel bodies of hc_mixes: a product of streams with few rows, by the matrix units.

x (T, K) and fn (M, K) are multiplied as sums of bfloat16 numbers, whose products are exact: a bfloat16 is one
such number, a float16 two, a float32 three (two if TF32's precision is enough).  A matrix unit truncates its
sums instead of rounding them, so the sums of blocks of columns or tokens are added outside of it.

    split       the parts of fn
    partials    products and squares, for some tokens and a fixed chunk of columns
    reduce      mixes: the chunks added in their order, and divided by the root mean square
    upstream    the parts of r dmixes, and the factor of x in what the norm adds to dx
    backward    dx, and dfn of a share of the tokens, for that share and a block of columns of a stream
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import multiply_add


def parts_of(value, count):
    """`count` bfloat16 numbers that add up to each float32, largest first; each holds 8 more bits."""
    found = []
    rest = value.to(torch.float32)
    for _ in range(count):
        part = rest.to(torch.bfloat16)
        found.append(part)
        rest = rest - part.to(torch.float32)
    return found


def given_parts(value, count):
    """The parts of a value; a bfloat16 value is its only part."""
    return [value] if value.dtype == torch.bfloat16 else parts_of(value, count)


def turned(parts):
    """The parts of the transpose."""
    return [part.transpose(0, 1) for part in parts]


def product(left, right, most, interpret):
    """The matrix product of two lists of parts, starting from zero, the smallest products first.

    Products of parts i and j with i + j >= `most` are left out.
    """
    pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if i + j < most]
    total = None
    for i, j in sorted(pairs, key=sum, reverse=True):
        if interpret:
            one = torch.matmul(left[i].to(torch.float32), right[j].to(torch.float32))
            total = one if total is None else total + one
        else:
            total = hl.dot(left[i], right[j]) if total is None else hl.dot(left[i], right[j], acc=total)
    return total


def store_parts(whole, value, rows, columns, parts):
    """Store the parts of a block in whole (rows, parts, columns)."""
    for k, part in enumerate(parts_of(value, parts)):
        hl.store(whole, [rows, k, columns], part)


def parts_at(whole, rows, columns, parts):
    """The parts of a block of rows and columns, as store_parts wrote them."""
    return [hl.load(whole, [rows, k, columns]) for k in range(parts)]


def hc_mixes_split(fn: torch.Tensor, split: torch.Tensor, facts: hl.constexpr):
    """Write split (M, parts, K), the bfloat16 parts of fn (M, K)."""
    rows, columns, parts = facts
    hl.specialize((fn.stride(), split.stride()))
    for tile_m, tile_k in hl.tile([rows, columns]):
        store_parts(split, fn[tile_m, tile_k], tile_m, tile_k, parts)


def no_squares(tile_t, block_k, interpret):
    """Zeros to add the squares of a block to, one for each column.

    In Helion's reference mode, where blocks have other widths, there is one for each token.
    """
    return hl.zeros([tile_t, 1] if interpret else [tile_t, block_k], dtype=torch.float32)


def with_squares(square, wide, interpret):
    """The sums of no_squares with the squares of a block added."""
    return square + ((wide * wide).sum(1, keepdim=True) if interpret else wide * wide)


def hc_mixes_partials(
    x: torch.Tensor,
    split: torch.Tensor,
    partials: torch.Tensor,
    squares: torch.Tensor,
    facts: hl.constexpr,
):
    """Write partials (T, splits, M) = x fn' and squares (T, splits), over `chunk` columns each.

    split (M, parts, K) holds the parts of fn, which the matrix units then read without registers.
    """
    rows, columns, splits, chunk, block_m, x_parts, parts, interpret = facts
    tokens = x.size(0)
    hl.specialize((x.stride(), split.stride(), partials.stride(), squares.stride()))
    block_k = hl.register_block_size(columns)
    for tile_s, tile_m, tile_t in hl.tile([splits, rows, tokens], block_size=[1, block_m, None]):
        s = tile_s.begin
        total = hl.zeros([tile_t, tile_m], dtype=torch.float32)
        square = no_squares(tile_t, block_k, interpret)
        for tile_k in hl.tile(s * chunk, min(s * chunk + chunk, columns), block_size=block_k):
            given = x[tile_t, tile_k]
            square = with_squares(square, given.to(torch.float32), interpret)
            weights = turned(parts_at(split, tile_m, tile_k, parts))
            total = total + product(given_parts(given, x_parts), weights, parts, interpret)
        partials[tile_t, s, tile_m] = total
        squares[tile_t, s] = square.sum(1)


def in_order(partials, squares, tile_t, splits):
    """The sums over the chunks, added one after another."""
    total = hl.load(partials, [tile_t, 0, slice(None)])
    square = hl.load(squares, [tile_t, 0])
    for s in range(1, splits):
        total = total + hl.load(partials, [tile_t, s, slice(None)])
        square = square + hl.load(squares, [tile_t, s])
    return total, square


def hc_mixes_reduce(
    partials: torch.Tensor,
    squares: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    facts: hl.constexpr,
):
    """Write mixes (T, M) and norms (T, 2) from the chunks, added in their order."""
    splits, size, norm_eps, eps_outside = facts
    tokens = mixes.size(0)
    hl.specialize((mixes.size(1), partials.stride(), squares.stride()))
    for tile_t in hl.tile(tokens):
        total, square = in_order(partials, squares, tile_t, splits)
        mean = square / size
        if eps_outside:
            root = torch.sqrt(mean)
            r = 1.0 / (root + norm_eps)
            k = torch.where(root > 0, -r / (size * root), 0.0)
        else:
            r = 1.0 / torch.sqrt(mean + norm_eps)
            k = -r * r / size
        mixes[tile_t, :] = total * r.unsqueeze(1)
        norms[tile_t, 0] = r
        norms[tile_t, 1] = k


def hc_mixes_upstream(
    dmixes: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    g: torch.Tensor,
    along: torch.Tensor,
    facts: hl.constexpr,
):
    """Write g (T, parts, M), the bfloat16 parts of r dmixes, and along (T,) = k (dmixes . mixes)."""
    parts, how = facts
    tokens = mixes.size(0)
    hl.specialize((mixes.size(1), g.stride()))
    for tile_t in hl.tile(tokens):
        upstream = dmixes[tile_t, :].to(torch.float32)
        # products are rounded, since which of two is fused with their sum would depend on the program
        products = multiply_add(upstream, mixes[tile_t, :], torch.zeros_like(upstream), how)
        along[tile_t] = products.sum(1) * norms[tile_t, 1]
        store_parts(g, upstream * norms[tile_t, 0].unsqueeze(1), tile_t, slice(None), parts)


def besides(along, residual, dy, pre, rows, i, tile_c):
    """What dx of some tokens takes beside products and x: (along, residual, dy, pre), as stored.

    What is not given is replaced by `along`.
    """
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    of_norm = hl.load(along, [rows])
    of_residual = of_norm if residual is None else hl.load(residual, [rows, i, tile_c])
    if dy is None:
        return of_norm, of_residual, of_norm, of_norm
    return of_norm, of_residual, hl.load(dy, [rows, tile_c]), hl.load(pre, [rows, i])


def stream_gradient(product, stream, given, residual, dy, how):
    """dx of a block of a stream in float32: `product`, what the norm adds, and the other gradients given.

    What is loaded is added up first, since `product` lies in registers in another order, and each sum of the
    two costs an exchange between threads.
    """
    scale, of_residual, of_dy, weight = given
    stream, scale = stream.to(torch.float32), scale.unsqueeze(1)
    if residual is None and dy is None:
        return multiply_add(scale, stream, product, how)
    rest = scale * stream
    if residual is not None:
        rest = multiply_add(scale, stream, of_residual.to(torch.float32), how)
    if dy is not None:
        rest = multiply_add(weight.to(torch.float32).unsqueeze(1), of_dy.to(torch.float32), rest, how)
    return product + rest


def hc_mixes_backward(
    g: torch.Tensor,
    along: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    residual: torch.Tensor | None,
    dy: torch.Tensor | None,
    pre: torch.Tensor | None,
    dx: torch.Tensor | None,
    dfn: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write dx (T, n, C) = r dmixes fn + k (dmixes . mixes) x, and dfn (shares, M, n, C) = (r dmixes)' x.

    Either of them may be None.

    dx includes the other gradients of x: residual (T, n, C), and pre (T, n) times dy (T, C); each may be
    None.  A share is a multiple of `unit` tokens.  x is read once if all rows of fn are one block.  With more
    blocks of rows, the programs of a share, one for each block, compute dx for a part of its tokens each.
    """
    rows, n, columns, shares, unit, block_m, blocks, x_parts, parts, dx_parts, how, interpret = facts
    tokens = x.size(0)
    share = (tokens + shares * unit - 1) // (shares * unit) * unit
    hl.specialize((x.stride(), fn.stride(), g.stride()))
    # Helion takes a loop that names a tensor outside its store for one that reads it, and then pipelines no
    # loads in it
    of_x, of_fn = dx is not None, dfn is not None
    # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
    if of_x:
        _dx = hl.specialize(dx.stride())
    if of_fn:
        _dfn = hl.specialize(dfn.stride())
    block_t = hl.register_block_size(tokens)
    for tile_s, tile_m, tile_i, tile_c in hl.tile(
        [shares, rows, n, columns], block_size=[1, block_m, 1, None]
    ):
        i = tile_i.begin
        first = tile_s.begin * share
        last = min(first + share, tokens)
        if blocks == 1:
            weights = parts_of(fn[tile_m, i, tile_c], dx_parts)
        total = hl.zeros([tile_c, tile_m], dtype=torch.float32)
        # loaded a step ahead into registers, since shared memory that is in use leaves less to other programs
        ahead = torch.clamp(first + hl.arange(block_t), max=tokens - 1)
        norm, old, collapsed, weight = besides(along, residual, dy, pre, ahead, i, tile_c)
        for tile_t in hl.tile(first, last, block_size=block_t):
            upstream = parts_at(g, tile_t, tile_m, parts)
            given = x[tile_t, i, tile_c]
            if interpret:  # the last tile is shorter there
                norm, old, collapsed, weight = besides(along, residual, dy, pre, tile_t, i, tile_c)
            if of_x and blocks == 1:
                back = product(upstream, weights, dx_parts, interpret)
                whole = stream_gradient(back, given, (norm, old, collapsed, weight), residual, dy, how)
                dx[tile_t, i, tile_c] = whole.to(dx.dtype)
                ahead = torch.clamp(tile_t.end + hl.arange(block_t), max=tokens - 1)
                norm, old, collapsed, weight = besides(along, residual, dy, pre, ahead, i, tile_c)
            if of_fn:
                total = total + product(turned(given_parts(given, x_parts)), upstream, parts, interpret)
        if of_fn:
            dfn[tile_s.begin, tile_m, i, tile_c] = total.transpose(0, 1)
        if of_x and blocks > 1:
            own = share // blocks
            begin = min(first + tile_m.id * own, last)
            for tile_u in hl.tile(begin, min(begin + own, last), block_size=block_t):
                summed = hl.zeros([tile_u, tile_c], dtype=torch.float32)
                for tile_q in hl.tile(rows, block_size=block_m):
                    block = parts_of(fn[tile_q, i, tile_c], dx_parts)
                    summed = summed + product(parts_at(g, tile_u, tile_q, parts), block, dx_parts, interpret)
                stream = x[tile_u, i, tile_c]
                whole = stream_gradient(
                    summed, stream, besides(along, residual, dy, pre, tile_u, i, tile_c), residual, dy, how
                )
                dx[tile_u, i, tile_c] = whole.to(dx.dtype)
