"""The Helion bodies of dot compress: out = x (x'y + z) and its gradients, two products per batch element.

x (B, M, D), y and out (B, M, K), z and b (B, D, K).  A program reads its rows of x twice: once for its share
of b = x'y + z, and, the last rows first, once for its rows of out.  `splits` programs share an element: each
adds up the products of its rows in float32, waits for the others, adds a slice of their sums in a fixed
order, waits again.  While they wait their rows of x stay in the last-level cache, as long as the elements at
work at a time fit there; with one program an element 132 of them are at work, and x comes from memory twice.

The programs of an element stand side by side in the grid and start in its order, so whoever waits waits for
programs that run or are next to start.  NVIDIA's hardware starts them so; nothing promises it, and elsewhere
splits is 1 (kernels.dot_compress_launch).

b is rounded to the type of x; `parts` = 2 adds what that rounding left, rounded too.
"""

from __future__ import annotations

import helion.language as hl
import torch


def product(a, b, acc, interpret):
    """acc + a b in float32; Helion's reference mode has no `hl.dot` on a CPU."""
    return acc + torch.matmul(a.float(), b.float()) if interpret else hl.dot(a, b, acc=acc)


def signal(counters, index):
    """Count this program in; what it stored before is visible to whoever has seen the count."""
    source = "tl.debug_barrier()\ntl.atomic_add({0} + {1}, 1, sem='release', scope='gpu')"
    hl.inline_triton(source, (counters, index), hl.zeros([], dtype=torch.int32))


def wait(counters, index, count):
    """Go on once `count` programs are counted in; at once for a negative index."""
    source = (
        "while tl.atomic_add({0} + tl.maximum({1}, 0), 0, sem='acquire', scope='gpu') < ({2} if {1} >= 0 else 0):"
        "\n    pass\ntl.debug_barrier()"
    )
    hl.inline_triton(source, (counters, index, count), None)


def remainder(acc, dtype):
    """What rounding acc to dtype leaves, in dtype."""
    return (acc - acc.to(dtype).to(torch.float32)).to(dtype)


def dot_compress_forward(
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor | None,
    out: torch.Tensor,
    b: torch.Tensor,
    partial: torch.Tensor,
    counters: torch.Tensor,
    d: hl.constexpr,
    k: hl.constexpr,
    block_d: hl.constexpr,
    block_k: hl.constexpr,
    splits: hl.constexpr,
    ring: hl.constexpr,
    parts: hl.constexpr,
    has_z: hl.constexpr,
    interpret: hl.constexpr,
) -> None:
    """out and b (B, parts, D, K); partial (B splits, D, K) and counters (2 B, zeros) serve splits > 1."""
    batch, m, _ = x.size()
    chunk = (m + splits - 1) // splits
    for tile_p, tile_d, tile_k in hl.tile([batch * splits, d, k], block_size=[1, block_d, block_k]):
        e = tile_p.begin // splits
        begin = tile_p.begin % splits * chunk
        end = min(begin + chunk, m)
        acc = hl.zeros([tile_d, tile_k], dtype=torch.float32)
        for tile_m in hl.tile(begin, end):
            acc = product(x[e, tile_m, tile_d].T, y[e, tile_m, tile_k], acc, interpret)
        if splits == 1:
            if has_z:
                acc = acc + z[e, tile_d, tile_k].to(torch.float32)
            high = acc.to(x.dtype)
            b[e, 0, tile_d, tile_k] = high
            if parts == 2:
                low = remainder(acc, x.dtype)
                b[e, 1, tile_d, tile_k] = low
        else:
            wait(counters, 2 * (e - ring) + 1, splits)
            slot = e % ring * splits
            partial[slot + tile_p.begin % splits, tile_d, tile_k] = acc
            signal(counters, 2 * e)
            wait(counters, 2 * e, splits)
            share = block_d // splits
            slice_begin = tile_p.begin % splits * share
            for tile_s in hl.tile(slice_begin, min(slice_begin + share, d), block_size=share):
                total = hl.zeros([tile_s, tile_k], dtype=torch.float32)
                for j in hl.static_range(splits):
                    total = total + partial[slot + j, tile_s, tile_k]
                if has_z:
                    total = total + z[e, tile_s, tile_k].to(torch.float32)
                b[e, 0, tile_s, tile_k] = total.to(x.dtype)
                if parts == 2:
                    b[e, 1, tile_s, tile_k] = remainder(total, x.dtype)
            signal(counters, 2 * e + 1)
            wait(counters, 2 * e + 1, splits)
            high = b[e, 0, tile_d, tile_k]
            if parts == 2:
                low = b[e, 1, tile_d, tile_k]
        for tile_r in hl.tile(begin, end):
            rows = begin + end - 1 - tile_r.index
            x_rows = x[e, rows, tile_d]
            o = product(x_rows, high, hl.zeros([tile_r, tile_k], dtype=torch.float32), interpret)
            if parts == 2:
                o = product(x_rows, low, o, interpret)
            out[e, rows, tile_k] = o.to(out.dtype)


def dot_compress_backward(
    grad: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    b: torch.Tensor,
    dx: torch.Tensor,
    dy: torch.Tensor,
    db: torch.Tensor,
    partial: torch.Tensor,
    counters: torch.Tensor,
    d: hl.constexpr,
    k: hl.constexpr,
    block_d: hl.constexpr,
    block_k: hl.constexpr,
    splits: hl.constexpr,
    ring: hl.constexpr,
    parts: hl.constexpr,
    interpret: hl.constexpr,
) -> None:
    """db = x'g, dy = x db, dx = g b' + y db'; db (B, parts, D, K) is dz, the rest as in the forward."""
    batch, m, _ = x.size()
    chunk = (m + splits - 1) // splits
    for tile_p, tile_d, tile_k in hl.tile([batch * splits, d, k], block_size=[1, block_d, block_k]):
        e = tile_p.begin // splits
        begin = tile_p.begin % splits * chunk
        end = min(begin + chunk, m)
        acc = hl.zeros([tile_d, tile_k], dtype=torch.float32)
        for tile_m in hl.tile(begin, end):
            acc = product(x[e, tile_m, tile_d].T, grad[e, tile_m, tile_k], acc, interpret)
        if splits == 1:
            high = acc.to(x.dtype)
            db[e, 0, tile_d, tile_k] = high
            if parts == 2:
                low = remainder(acc, x.dtype)
                db[e, 1, tile_d, tile_k] = low
        else:
            wait(counters, 2 * (e - ring) + 1, splits)
            slot = e % ring * splits
            partial[slot + tile_p.begin % splits, tile_d, tile_k] = acc
            signal(counters, 2 * e)
            wait(counters, 2 * e, splits)
            share = block_d // splits
            slice_begin = tile_p.begin % splits * share
            for tile_s in hl.tile(slice_begin, min(slice_begin + share, d), block_size=share):
                total = hl.zeros([tile_s, tile_k], dtype=torch.float32)
                for j in hl.static_range(splits):
                    total = total + partial[slot + j, tile_s, tile_k]
                db[e, 0, tile_s, tile_k] = total.to(x.dtype)
                if parts == 2:
                    db[e, 1, tile_s, tile_k] = remainder(total, x.dtype)
            signal(counters, 2 * e + 1)
            wait(counters, 2 * e + 1, splits)
            high = db[e, 0, tile_d, tile_k]
            if parts == 2:
                low = db[e, 1, tile_d, tile_k]
        b_high = b[e, 0, tile_d, tile_k]
        if parts == 2:
            b_low = b[e, 1, tile_d, tile_k]
        for tile_r in hl.tile(begin, end):
            rows = begin + end - 1 - tile_r.index
            x_rows, y_rows, g_rows = x[e, rows, tile_d], y[e, rows, tile_k], grad[e, rows, tile_k]
            o = product(x_rows, high, hl.zeros([tile_r, tile_k], dtype=torch.float32), interpret)
            s = product(g_rows, b_high.T, hl.zeros([tile_r, tile_d], dtype=torch.float32), interpret)
            s = product(y_rows, high.T, s, interpret)
            if parts == 2:
                o = product(x_rows, low, o, interpret)
                s = product(g_rows, b_low.T, s, interpret)
                s = product(y_rows, low.T, s, interpret)
            dy[e, rows, tile_k] = o.to(dy.dtype)
            dx[e, rows, tile_d] = s.to(dx.dtype)


def dot_compress_forward_wide(
    x: torch.Tensor,
    y: torch.Tensor,
    z: torch.Tensor | None,
    out: torch.Tensor,
    b: torch.Tensor,
    d: hl.constexpr,
    k: hl.constexpr,
    block_d: hl.constexpr,
    block_k: hl.constexpr,
    parts: hl.constexpr,
    has_z: hl.constexpr,
    interpret: hl.constexpr,
) -> None:
    """The forward where b is too large for the registers of a program: block by block, read back from memory."""
    batch, m, _ = x.size()
    for tile_e, tile_k in hl.tile([batch, k], block_size=[1, block_k]):
        e = tile_e.begin
        for tile_d in hl.tile(d, block_size=block_d):
            acc = hl.zeros([tile_d, tile_k], dtype=torch.float32)
            for tile_m in hl.tile(m):
                acc = product(x[e, tile_m, tile_d].T, y[e, tile_m, tile_k], acc, interpret)
            if has_z:
                acc = acc + z[e, tile_d, tile_k].to(torch.float32)
            b[e, 0, tile_d, tile_k] = acc.to(x.dtype)
            if parts == 2:
                b[e, 1, tile_d, tile_k] = remainder(acc, x.dtype)
        for tile_r in hl.tile(m):
            o = hl.zeros([tile_r, tile_k], dtype=torch.float32)
            for tile_c in hl.tile(d, block_size=block_d):
                x_rows = x[e, tile_r, tile_c]
                o = product(x_rows, b[e, 0, tile_c, tile_k], o, interpret)
                if parts == 2:
                    o = product(x_rows, b[e, 1, tile_c, tile_k], o, interpret)
            out[e, tile_r, tile_k] = o.to(out.dtype)


def dot_compress_backward_wide(
    grad: torch.Tensor,
    x: torch.Tensor,
    y: torch.Tensor,
    b: torch.Tensor,
    dx: torch.Tensor,
    dy: torch.Tensor,
    db: torch.Tensor,
    d: hl.constexpr,
    k: hl.constexpr,
    block_d: hl.constexpr,
    block_k: hl.constexpr,
    parts: hl.constexpr,
    interpret: hl.constexpr,
) -> None:
    """The backward in the same blocks; all columns of y in one."""
    batch, m, _ = x.size()
    for tile_e, tile_k in hl.tile([batch, k], block_size=[1, block_k]):
        e = tile_e.begin
        for tile_d in hl.tile(d, block_size=block_d):
            acc = hl.zeros([tile_d, tile_k], dtype=torch.float32)
            for tile_m in hl.tile(m):
                acc = product(x[e, tile_m, tile_d].T, grad[e, tile_m, tile_k], acc, interpret)
            db[e, 0, tile_d, tile_k] = acc.to(x.dtype)
            if parts == 2:
                db[e, 1, tile_d, tile_k] = remainder(acc, x.dtype)
        for tile_r in hl.tile(m):
            y_rows, g_rows = y[e, tile_r, tile_k], grad[e, tile_r, tile_k]
            o = hl.zeros([tile_r, tile_k], dtype=torch.float32)
            for tile_c in hl.tile(d, block_size=block_d):
                x_rows, high = x[e, tile_r, tile_c], db[e, 0, tile_c, tile_k]
                o = product(x_rows, high, o, interpret)
                s = hl.zeros([tile_r, tile_c], dtype=torch.float32)
                s = product(g_rows, b[e, 0, tile_c, tile_k].T, s, interpret)
                s = product(y_rows, high.T, s, interpret)
                if parts == 2:
                    low = db[e, 1, tile_c, tile_k]
                    o = product(x_rows, low, o, interpret)
                    s = product(g_rows, b[e, 1, tile_c, tile_k].T, s, interpret)
                    s = product(y_rows, low.T, s, interpret)
                dx[e, tile_r, tile_c] = s.to(dx.dtype)
            dy[e, tile_r, tile_k] = o.to(dy.dtype)
