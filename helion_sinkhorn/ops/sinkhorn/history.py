"""The Helion kernel body of the exact gradient for any number of iterations, with vectors in memory."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.adjoint import (
    of_order_one,
    project,
    project_trail,
    softmax_gradient,
)
from helion_sinkhorn.ops.sinkhorn.in_order import one_of_data
from helion_sinkhorn.ops.sinkhorn.iteration import (
    contract,
    lead_size,
    reciprocals,
    restart,
    spread,
    started,
    summation,
)
from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow
from helion_sinkhorn.runtime.device_math import joined


def sums_of(n, m, how, rounded):
    """`summation` with all products rounded, or with none rounded."""
    return summation(n, m, how) | {"rounded": how if rounded else None}


def block_places(tile):
    """The scratch rows of the running block."""
    block = hl.inline_triton("tl.program_id(0)", (), hl.full([], 0, dtype=torch.int32))
    return block * tile.block_size + hl.arange(tile.block_size)


def keep(kept, place, t, w, shape):
    """Store a vector (tile, k) of step t in kept, the first of `kept_views`; its vectors have `shape`."""
    if len(shape) > 1:
        w = w.reshape(w.size(0), *shape)
    hl.store(kept, [place, t, *(slice(None) for _ in shape)], w)


def of_line(sizes, lanes_first):
    """Those sizes or strides of a view that belong to a kept vector: (K, G, R, C, w), or (k,)."""
    if len(sizes) == 3 or not lanes_first:
        return sizes[2:]
    return sizes[4], sizes[5], sizes[2], sizes[1], sizes[6]


def kept_part(kept, place, t, i, j, lanes_first):
    """Entries (i, j) of each thread as (tile, R, C, w), in the layout of `loads.load_lanes`."""
    rest = [slice(None)] * 3
    if not lanes_first:
        return hl.load(kept, [place, t, i, j, *rest])
    return hl.load(kept, [t, *rest[:2], place, i, j, rest[2]]).permute(2, 1, 0, 3)


def kept_line(kept, shape, place, t, tile, lanes_first):
    """The vector of step t as each thread reads it; kept: the second of `kept_views`, vectors of `shape`."""
    if len(shape) == 1:
        return hl.load(kept, [place, t, slice(None)])
    k, g, *lanes, w = shape
    lanes = [size for size in lanes if size > 1]
    return joined(
        [
            kept_part(kept, place, t, i, j, lanes_first).reshape(tile, *lanes, w)
            for i in range(k)
            for j in range(g)
        ]
    )


def over_lines(line, shape, axis, x_shape, tile, n, m):
    """A `kept_line` with one entry for each index of `axis`, spread over the block (tile, n, m).

    It is only spread where each thread has read its own entries, and otherwise returned as it is.
    """
    if len(shape) == 1:
        return line
    rows, parts, row_lanes, column_lanes, width = x_shape
    k, g = shape[:2]
    last = 1 + (row_lanes > 1) + (column_lanes > 1)
    bits = range(last + 1, last + (k * g).bit_length())
    of_k, of_g = bits[: k.bit_length() - 1], bits[k.bit_length() - 1 :]
    of_rows, of_columns = ([1] if row_lanes > 1 else []), ([last - 1] if column_lanes > 1 else [])
    if axis == 1:
        order, sizes = (*of_g, last, *of_rows, *of_columns), (rows, row_lanes, 1, column_lanes, 1)
    else:
        order, sizes = (*of_rows, *of_k, *of_columns, *of_g, last), (1, row_lanes, parts, column_lanes, width)
    block = line.permute(0, *order).reshape(tile, *sizes)
    return block.expand(tile, rows, row_lanes, parts, column_lanes, width).reshape(tile, n, m)


def kept_lines(kept, shape, place, t, axis, lanes_first, block):
    """`kept_line` of step t with `over_lines`; `block` holds the arguments of the latter after the axis."""
    return over_lines(kept_line(kept, shape, place, t, block[1], lanes_first), shape, axis, *block)


def sinkhorn_backward_history(
    x: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    us: torch.Tensor,
    us_read: torch.Tensor,
    vs: torch.Tensor,
    vs_read: torch.Tensor,
    logs_p: torch.Tensor,
    logs_q: torch.Tensor,
    facts: hl.constexpr,
):
    """Write dX of the iterations as run, for any number of them: u_t and v_t pass through memory.

    us (places, steps, |lead|) and vs (places, steps, |trail|) are scratch, small enough to stay in L2; they
    are the views of `kept_views` for writing, and us_read and vs_read those for reading.  A persistent block
    has its own places and uses them again for each of its tiles; otherwise every matrix of the launch has a
    place.  logs_p (places, restarts, |lead|) and logs_q (places, restarts, |trail|) hold the logarithms that
    each restart of the log form moved out of u and v.

    rounded: whether products are rounded before they are summed.  A sum must have the same bits in whichever
    thread stores it, but in a thread with one entry of a line the compiler fuses the last sum with that
    thread's product.

    ordered: see `in_order`; lanes_first: see `loads.load_lanes`."""
    (
        n, m, n_iters, eps, deepseek, lead_axis, segment, shift, how, rounded, ordered, persistent,
        lanes_first,
    ) = facts  # fmt: skip
    batch = x.size(0)
    x_shape, dy_shape = hl.specialize((x.shape[1:], dy.shape[1:]))
    hl.specialize((x.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    u_shape, v_shape = hl.specialize((us.shape[2:], vs.shape[2:]))
    of_u, of_v = hl.specialize((
        of_line(us_read.shape, lanes_first), of_line(vs_read.shape, lanes_first)
    ))  # fmt: skip
    # the strides of places and steps stay variables: as constants they make LLVM count offsets below 0 on AMD
    hl.specialize((of_line(us_read.stride(), lanes_first), of_line(vs_read.stride(), lanes_first)))
    hl.specialize((us.stride()[2:], vs.stride()[2:], logs_p.size(2), logs_q.size(2)))
    own = len(of_u) > 1
    logits = x.movedim((-2, -3), (0, 1)) if lanes_first else x
    upstream = dy.movedim((-2, -3), (0, 1)) if lanes_first else dy
    sums = sums_of(n, m, how, rounded)
    by_step = summation(n, m, how, lanes=x_shape[2:]) if ordered else sums
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    rho = lead / trail
    steps = n_iters - 1 if deepseek else n_iters
    restarts = (steps - 1) // segment if steps > 0 else 0
    head = steps - restarts * segment
    for tile in hl.tile(batch):
        place = block_places(tile) if persistent else tile
        block = x_shape, tile.block_size, n, m
        if own and persistent:
            # wait until all threads have read the vectors of the last tile
            hl.inline_triton("tl.debug_barrier()", (), None)
        a, p, q = started(
            read(logits, x_shape, tile, n, m, lanes_first), n, m, eps, deepseek, lead_axis, how, shift
        )
        u = reciprocals(p, lead, how, False)
        v = reciprocals(q, trail, how, False)
        if steps > 0:
            for t in range(head):
                p = rho * (contract(a, v, lead_axis, by_step) + eps * p)
                u = reciprocals(p, lead, how, False)
                q = contract(a, u, trail_axis, by_step) + (eps / rho) * q
                v = reciprocals(q, trail, how, False)
                keep(us, place, t, u, u_shape)
                keep(vs, place, t, v, v_shape)
        if restarts > 0:
            log_p = torch.log2(p)
            log_q = torch.log2(q)
            for k in range(restarts):
                logs_p[place, k, :] = log_p
                logs_q[place, k, :] = log_q
                a = restart(
                    read(logits, x_shape, tile, n, m, lanes_first), n, m, log_p, log_q, lead_axis, how
                )
                v = one_of_data(log_q) if ordered else torch.ones_like(v)
                for i in range(segment):
                    p = rho * contract(a, v, lead_axis, by_step)
                    u = reciprocals(p, lead, how, False)
                    q = contract(a, u, trail_axis, by_step)
                    v = reciprocals(q, trail, how, False)
                    keep(us, place, head + k * segment + i, u, u_shape)
                    keep(vs, place, head + k * segment + i, v, v_shape)
                log_p = log_p + torch.log2(p)
                log_q = log_q + torch.log2(q)
        if may_overflow(eps):
            da, power = of_order_one(read(upstream, dy_shape, tile, n, m, lanes_first), sums)
            u_spread, v_spread = spread(u, lead_axis), spread(v, trail_axis)
            da = da * (a * u_spread * v_spread) if restarts > 0 else da * u_spread * v_spread
        else:
            da = (
                read(upstream, dy_shape, tile, n, m, lanes_first)
                * spread(u, lead_axis)
                * spread(v, trail_axis)
            )
        if not deepseek:
            # once more than the iterations require, see last_iterations
            da = project_trail(a, da, u, v, lead_axis, sums, restarts > 0)
        if own and how != "full":
            # threads read what other threads of the block have stored
            hl.inline_triton("tl.debug_barrier()", (), None)
        v_t = (
            kept_line(vs_read, of_v, place, steps - 1, tile.block_size, lanes_first)
            if own and steps > 0
            else v
        )
        if restarts > 0:
            for k_back in range(restarts):
                before = restarts - 1 - k_back
                x32 = read(logits, x_shape, tile, n, m, lanes_first)
                a = restart(x32, n, m, logs_p[place, before, :], logs_q[place, before, :], lead_axis, how)
                for i_back in range(segment - 1):
                    t = steps - 1 - k_back * segment - i_back
                    u_line = kept_lines(us_read, of_u, place, t, lead_axis, lanes_first, block)
                    v_line = over_lines(v_t, of_v, trail_axis, *block)
                    v_t = kept_line(vs_read, of_v, place, t - 1, tile.block_size, lanes_first)
                    v_before = over_lines(v_t, of_v, trail_axis, *block)
                    da = project(a, da, u_line, v_line, v_before, rho, lead_axis, by_step, True)
                begin = steps - (k_back + 1) * segment
                u_line = kept_lines(us_read, of_u, place, begin, lead_axis, lanes_first, block)
                v_line = over_lines(v_t, of_v, trail_axis, *block)
                da = project(a, da, u_line, v_line, torch.ones_like(v), rho, lead_axis, by_step, True)
                # a restart leaves D unchanged
                v_t = kept_line(vs_read, of_v, place, begin - 1, tile.block_size, lanes_first)
        a, p, q = started(
            read(logits, x_shape, tile, n, m, lanes_first), n, m, eps, deepseek, lead_axis, how, shift
        )
        v_0 = reciprocals(q, trail, how, False)
        if steps > 0:
            for t_back in range(head - 1):
                t = head - 1 - t_back
                u_line = kept_lines(us_read, of_u, place, t, lead_axis, lanes_first, block)
                v_line = over_lines(v_t, of_v, trail_axis, *block)
                v_t = kept_line(vs_read, of_v, place, t - 1, tile.block_size, lanes_first)
                v_before = over_lines(v_t, of_v, trail_axis, *block)
                da = project(a, da, u_line, v_line, v_before, rho, lead_axis, by_step, restarts > 0)
            u_line = kept_lines(us_read, of_u, place, 0, lead_axis, lanes_first, block)
            v_line = over_lines(v_t, of_v, trail_axis, *block)
            da = project(a, da, u_line, v_line, v_0, rho, lead_axis, by_step, restarts > 0)
        if deepseek:
            x32 = read(logits, x_shape, tile, n, m, lanes_first)
            dz = softmax_gradient(x32, da, v_0, n, m, eps, lead_axis, how, summation(n, m, how))
        else:
            dz = da if restarts > 0 else da * a
        if may_overflow(eps):
            dz = dz * power
        if dx.dim() == 2:
            dx[tile, :] = dz.to(dx.dtype).reshape(tile.block_size, n * m)
        else:
            dx[tile, :, :] = dz.to(dx.dtype)
