"""The Helion kernel bodies of dot compress, out = x (x'y + z), and its gradients: three products.

x and dx (B, M, D), y, out, g and dy (B, M, K), z, b and db (B, D, K):

    product     b = x'y + z, db = x'g    a program sums a block of b over all rows, in their order
    apply       out = x b, dy = x db     a program keeps b and takes a range of rows
    expand      dx = g b' + y db'        a program keeps a block of b and db and takes a range of rows

Sums are in float32.  b is rounded to the dtype of x; with `parts` = 2 its rounding error is kept too,
rounded.
"""

from __future__ import annotations

import helion.language as hl
import torch


def multiply(a, b, acc, interpret):
    """acc + a b in float32; Helion's reference mode has no `hl.dot` on a CPU."""
    return acc + torch.matmul(a.float(), b.float()) if interpret else hl.dot(a, b, acc=acc)


def dot_compress_product(
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor | None,
    b: torch.Tensor,
    facts: hl.constexpr,
) -> None:
    """Write b (B, parts, D, K)."""
    d, k, block_d, block_k, parts, interpret = facts
    batch, m, _ = x.size()
    # blocks of one element come next to each other, since they read the same rows of y
    for tile_d, tile_k, tile_e in hl.tile([d, k, batch], block_size=[block_d, block_k, 1]):
        e = tile_e.begin
        acc = hl.zeros([tile_d, tile_k], dtype=torch.float32)
        for tile_m in hl.tile(m):
            acc = multiply(x[e, tile_m, tile_d].T, y[e, tile_m, tile_k], acc, interpret)
        if z is not None:
            acc = acc + z[e, tile_d, tile_k].to(torch.float32)
        high = acc.to(b.dtype)
        b[e, 0, tile_d, tile_k] = high
        if parts == 2:
            b[e, 1, tile_d, tile_k] = (acc - high.to(torch.float32)).to(b.dtype)


def dot_compress_apply(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor, facts: hl.constexpr) -> None:
    """Write out, `rows` rows in each program; b is read again for every tile if it has several blocks."""
    d, k, block_d, block_k, rows, parts, interpret = facts
    batch, m, _ = x.size()
    for tile_e, tile_k, tile_p in hl.tile([batch, k, m], block_size=[1, block_k, rows]):
        e = tile_e.begin
        if d <= block_d:
            high = b[e, 0, :, tile_k]
            if parts == 2:
                low = b[e, 1, :, tile_k]
        for tile_r in hl.tile(tile_p.begin, tile_p.end):
            o = hl.zeros([tile_r, tile_k], dtype=torch.float32)
            if d <= block_d:
                x_rows = x[e, tile_r, :]
                o = multiply(x_rows, high, o, interpret)
                if parts == 2:
                    o = multiply(x_rows, low, o, interpret)
            else:
                for tile_d in hl.tile(d, block_size=block_d):
                    x_block = x[e, tile_r, tile_d]
                    o = multiply(x_block, b[e, 0, tile_d, tile_k], o, interpret)
                    if parts == 2:
                        o = multiply(x_block, b[e, 1, tile_d, tile_k], o, interpret)
            out[e, tile_r, tile_k] = o.to(out.dtype)


def dot_compress_expand(
    grad: torch.Tensor,
    y: torch.Tensor,
    b: torch.Tensor,
    db: torch.Tensor,
    dx: torch.Tensor,
    facts: hl.constexpr,
) -> None:
    """Write dx, with `rows` x `block_d` entries for each program, by products over `depth` columns of y."""
    d, k, block_d, block_k, depth, rows, parts, interpret = facts
    batch, m, _ = y.size()
    # blocks of the same rows come next to each other, since they read the same rows of g and y
    for tile_d, tile_k, tile_e, tile_p in hl.tile([d, k, batch, m], block_size=[block_d, block_k, 1, rows]):
        e = tile_e.begin
        if depth == block_k:
            b_high, db_high = b[e, 0, tile_d, tile_k], db[e, 0, tile_d, tile_k]
            if parts == 2:
                b_low, db_low = b[e, 1, tile_d, tile_k], db[e, 1, tile_d, tile_k]
        for tile_r in hl.tile(tile_p.begin, tile_p.end):
            s = hl.zeros([tile_r, tile_d], dtype=torch.float32)
            if depth == block_k:
                g_rows, y_rows = grad[e, tile_r, tile_k], y[e, tile_r, tile_k]
                s = multiply(g_rows, b_high.T, s, interpret)
                s = multiply(y_rows, db_high.T, s, interpret)
                if parts == 2:
                    s = multiply(g_rows, b_low.T, s, interpret)
                    s = multiply(y_rows, db_low.T, s, interpret)
            else:
                # a thread holds all its operands of a float32 product, and 64 columns at once spill
                for tile_c in hl.tile(k, block_size=depth):
                    s = multiply(grad[e, tile_r, tile_c], b[e, 0, tile_d, tile_c].T, s, interpret)
                    s = multiply(y[e, tile_r, tile_c], db[e, 0, tile_d, tile_c].T, s, interpret)
            dx[e, tile_r, tile_d] = s.to(dx.dtype)
