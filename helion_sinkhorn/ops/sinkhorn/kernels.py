"""The Helion kernel bodies of Sinkhorn-Knopp and its exact gradient, with scaling vectors in registers.

The functions are plain; `helion_sinkhorn.runtime.kernel.build` decorates them with a fixed config.
Helion runs the helpers as ordinary Python while it traces: their lists and loops unroll.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.adjoint import (
    last_iterations,
    of_order_one,
    pick,
    replay_and_take_back,
    softmax_gradient,
)
from helion_sinkhorn.ops.sinkhorn.in_order import one_of_data, read_in_parts, stored_in_parts
from helion_sinkhorn.ops.sinkhorn.iteration import (
    iterate,
    lead_size,
    pivot,
    reciprocals,
    restart,
    spread,
    start,
    started,
    summation,
    total,
)
from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow


def sinkhorn_forward(x: torch.Tensor, out: torch.Tensor, facts: hl.constexpr):
    """Write P after `n_iters` iterations.  x is a view for `loads.read`, out (B, n, m) or (B, n m).

    A flat result goes through shared memory and is stored in full cache lines; stored directly, a thread's
    entries of a matrix would write parts of lines.  ordered: see `in_order`; lanes_first: see
    `loads.load_lanes`.
    """
    n, m, n_iters, eps, deepseek, lead_axis, segment, shift, how, ordered, lanes_first, paired, pivoted = (
        facts
    )
    batch = x.size(0)
    shape = hl.specialize(x.shape[1:])
    hl.specialize((x.stride(), out.shape[1:], out.stride()))
    logits = x.movedim((-2, -3), (0, 1)) if lanes_first else x
    sums = summation(n, m, how)
    by_step = summation(n, m, how, lanes=shape[2:]) if ordered else sums
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    steps = n_iters - 1 if deepseek else n_iters
    restarts = (steps - 1) // segment if steps > 0 else 0
    for tile in hl.tile(batch):
        a, p, q = started(
            read(logits, shape, tile, n, m, lanes_first), n, m, eps, deepseek, lead_axis, how, shift
        )
        if pivoted:
            a, p, q, _c, _r = pivot(a, p, q, lead, trail, lead_axis, how, sums)
        elif ordered:
            p = one_of_data(total(a, trail_axis, sums))
        if steps > 0:
            for _step in range(steps - restarts * segment):
                p, q = iterate(a, p, q, lead, trail, eps, lead_axis, how, paired, by_step)
        if restarts > 0:
            log_p, log_q = torch.log2(p), torch.log2(q)
            for _restart in range(restarts):
                # read again, since keeping the logits would take a matrix of registers in all iterations
                x32 = read(logits, shape, tile, n, m, lanes_first)
                a = restart(x32, n, m, log_p, log_q, lead_axis, how)
                p = one_of_data(log_p) if ordered else torch.ones_like(p)
                q = one_of_data(log_q) if ordered else torch.ones_like(q)
                for _segment_step in range(segment):
                    p, q = iterate(a, p, q, lead, trail, 0.0, lead_axis, how, paired, by_step)
                log_p = log_p + torch.log2(p)
                log_q = log_q + torch.log2(q)
        u = spread(reciprocals(p, lead, how, paired), lead_axis)
        y = (a * u * spread(reciprocals(q, trail, how, paired), trail_axis)).to(out.dtype)
        if out.dim() == 2:
            out[tile, :] = y.reshape(tile.block_size, n * m)
        else:
            out[tile, :, :] = y


def sinkhorn_backward(x: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor, facts: hl.constexpr):
    """Write dX of the iterations as run, with u_t and v_t in registers; views are as in `sinkhorn_forward`.

    If ordered (see `iteration.total`), views are those of `views.in_parts`.

    `head` segments of `length` iterations run forward, where only (p, q) at their starts are kept, and then
    the iterations that are left before a restart of the log form; after a restart come `tail` segments.  On
    the way back each segment is replayed with its history in registers.  One copy of that code runs all
    segments on one side of the restart but the last, since unrolled code takes much longer to compile.
    """
    (
        n, m, n_iters, eps, deepseek, lead_axis, length, head, tail, shift, how, ordered, lanes_first,
        paired, pivoted, lean,
    ) = facts  # fmt: skip
    batch = x.size(0)
    x_shape, dy_shape = hl.specialize((x.shape[1:], dy.shape[1:]))
    hl.specialize((x.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    logits = x.movedim((-2, -3), (0, 1)) if lanes_first else x
    upstream = dy.movedim((-2, -3), (0, 1)) if lanes_first else dy
    sums = summation(n, m, how, ordered)
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    steps = n_iters - 1 if deepseek else n_iters
    rest = steps - (head + tail) * length
    for tile in hl.tile(batch):
        x32 = read_in_parts(logits, x_shape, tile, n, m, ordered, lanes_first)
        a, p, q = started(x32, n, m, eps, deepseek, lead_axis, how, shift)
        if pivoted:
            a, p, q, _c, r = pivot(a, p, q, lead, trail, lead_axis, how, sums)
        # + 0: Helion 1.5 lets a later loop that carries p overwrite the value kept here (docs/dev/helion.md)
        p_starts = [p + 0.0] * (head + 1)
        q_starts = [q + 0.0] * (head + 1)
        if head > 0:
            for s in hl.static_range(head):
                for _step in range(length):
                    p, q = iterate(a, p, q, lead, trail, eps, lead_axis, how, paired, sums)
                p_starts[s + 1] = p + 0.0
                q_starts[s + 1] = q + 0.0
        if tail > 0:
            for _rest_step in range(rest):
                p, q = iterate(a, p, q, lead, trail, eps, lead_axis, how, paired, sums)
            a = restart(
                read_in_parts(logits, x_shape, tile, n, m, ordered, lanes_first),
                n, m, torch.log2(p), torch.log2(q), lead_axis, how,
            )  # fmt: skip
            p = torch.ones_like(p)
            q = torch.ones_like(q)
            p_again = [p + 0.0] * tail
            q_again = [q + 0.0] * tail
            if tail > 1:
                for s in hl.static_range(tail - 1):
                    for _tail_step in range(length):
                        p, q = iterate(a, p, q, lead, trail, eps, lead_axis, how, paired, sums)
                    p_again[s + 1] = p + 0.0
                    q_again[s + 1] = q + 0.0
        da = read_in_parts(upstream, dy_shape, tile, n, m, ordered, lanes_first)
        if may_overflow(eps):
            da, power = of_order_one(da, sums)
        if tail > 0:
            da = last_iterations(
                a, da, p, q, length, lead, trail, eps, lead_axis, how, paired, sums, lean, of_log=True
            )
            if tail > 1:
                i = hl.full([], tail - 2, dtype=torch.int32)
                for _tail_segment in range(tail - 1):
                    da = replay_and_take_back(
                        a, da, pick(p_again, tail - 1, i), pick(q_again, tail - 1, i), length,
                        lead, trail, eps, lead_axis, how, paired, sums, lean, True,
                    )  # fmt: skip
                    i = i - 1
            a, _p, _q = start(
                read_in_parts(logits, x_shape, tile, n, m, ordered, lanes_first),
                n,
                m,
                eps,
                deepseek,
                lead_axis,
                how,
            )
            da = replay_and_take_back(
                a, da, p_starts[head], q_starts[head], rest,
                lead, trail, eps, lead_axis, how, paired, sums, lean, True,
            )  # fmt: skip
        else:
            # not twice where the log form restarts: with 4 % more code an 8 x 8 matrix in one thread exceeds
            # the instruction cache, 128 KiB, and takes 22 % longer on an H200
            da = last_iterations(
                a, da, p_starts[head], q_starts[head], rest,
                lead, trail, eps, lead_axis, how, paired, sums, lean, eps == 0.0,
            )  # fmt: skip
        if head > 0:
            k = hl.full([], head - 1, dtype=torch.int32)
            for _segment in range(head):
                da = replay_and_take_back(
                    a, da, pick(p_starts, head, k), pick(q_starts, head, k), length,
                    lead, trail, eps, lead_axis, how, paired, sums, lean, tail > 0,
                )  # fmt: skip
                k = k - 1
        if deepseek:
            v = reciprocals(q_starts[0], trail, how, paired)
            if pivoted:
                # p_0 = 1 before the pivot
                da = da * spread(p_starts[0], lead_axis) * spread(r, trail_axis)
                v = v * r
            # read again, since keeping the logits would take a matrix of registers in all segments
            x32 = read_in_parts(
                logits, x_shape, tile, n, m, ordered, lanes_first, eviction_policy="evict_first"
            )
            dz = softmax_gradient(x32, da, v, n, m, eps, lead_axis, how, summation(n, m, how))
        else:
            dz = da if tail > 0 else da * a
        if may_overflow(eps):
            dz = dz * power
        if dx.dim() == 2:
            dx[tile, :] = stored_in_parts(dz.to(dx.dtype), x_shape, ordered).reshape(tile.block_size, n * m)
        else:
            dx[tile, :, :] = dz.to(dx.dtype)
