"""The Helion kernel body of the exact gradient for any number of iterations, scaling vectors in memory."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.adjoint import project, project_trail, softmax_gradient
from helion_sinkhorn.ops.sinkhorn.iteration import (
    contract,
    lead_size,
    read,
    reciprocals,
    restart,
    spread,
    start,
    summation,
)


def sums_of(n, m, how, rounded):
    """`summation` with all products rounded, or none."""
    return summation(n, m, how) | {"rounded": how if rounded else None}


def block_places(tile):
    """The scratch rows of the block that runs this."""
    block = hl.inline_triton("tl.program_id(0)", (), hl.full([], 0, dtype=torch.int32))
    return block * tile.block_size + hl.arange(tile.block_size)


def sinkhorn_backward_history(
    x: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    us: torch.Tensor,
    vs: torch.Tensor,
    logs_p: torch.Tensor,
    logs_q: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    lead_axis: hl.constexpr,
    segment: hl.constexpr,
    how: hl.constexpr,
    rounded: hl.constexpr,
    persistent: hl.constexpr,
):
    """dX of the iterations run, for any number of them: u_t and v_t pass through memory.

    us (steps, places, |lead|) and vs (steps, places, |trail|) are scratch, small enough to stay in L2.  A
    persistent block has places of its own and uses them again for each of its tiles; otherwise every matrix
    of the launch has one.  logs_p (restarts, places, |lead|) and logs_q (restarts, places, |trail|) hold
    what every restart of the log form took out of u and v.

    rounded: whether products are rounded before they are summed.  Whichever thread stores a sum, its bits
    must be the same; of a thread with one entry of a line the compiler fuses the last sum with its own
    product."""
    batch = x.size(0)
    x_shape, dy_shape = hl.specialize((x.shape[1:], dy.shape[1:]))
    hl.specialize((x.stride(), dy.stride(), dx.shape[1:], dx.stride()))
    hl.specialize((us.size(2), vs.size(2), logs_p.size(2), logs_q.size(2)))
    sums = sums_of(n, m, how, rounded)
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    rho = lead / trail
    steps = n_iters - 1 if deepseek else n_iters
    restarts = (steps - 1) // segment if steps > 0 else 0
    head = steps - restarts * segment
    for tile in hl.tile(batch):
        place = block_places(tile) if persistent else tile
        a, p, q = start(read(x, x_shape, tile, n, m), n, m, eps, deepseek, lead_axis, how)
        u = reciprocals(p, lead, how, False)
        v = reciprocals(q, trail, how, False)
        if steps > 0:
            for t in range(head):
                p = rho * (contract(a, v, lead_axis, sums) + eps * p)
                u = reciprocals(p, lead, how, False)
                q = contract(a, u, trail_axis, sums) + (eps / rho) * q
                v = reciprocals(q, trail, how, False)
                us[t, place, :] = u
                vs[t, place, :] = v
        if restarts > 0:
            log_p = torch.log2(p)
            log_q = torch.log2(q)
            for k in range(restarts):
                logs_p[k, place, :] = log_p
                logs_q[k, place, :] = log_q
                a = restart(read(x, x_shape, tile, n, m), n, m, log_p, log_q, lead_axis, how)
                v = torch.ones_like(v)
                for i in range(segment):
                    p = rho * contract(a, v, lead_axis, sums)
                    u = reciprocals(p, lead, how, False)
                    q = contract(a, u, trail_axis, sums)
                    v = reciprocals(q, trail, how, False)
                    us[head + k * segment + i, place, :] = u
                    vs[head + k * segment + i, place, :] = v
                log_p = log_p + torch.log2(p)
                log_q = log_q + torch.log2(q)
        da = read(dy, dy_shape, tile, n, m) * spread(u, lead_axis) * spread(v, trail_axis)
        if not deepseek:
            # once more than iterations ask: see last_iterations
            da = project_trail(a, da, u, v, lead_axis, sums)
        if restarts > 0:
            for k_back in range(restarts):
                before = restarts - 1 - k_back
                x32 = read(x, x_shape, tile, n, m)
                a = restart(x32, n, m, logs_p[before, place, :], logs_q[before, place, :], lead_axis, how)
                last = steps - 1 - k_back * segment
                for i_back in range(segment - 1):
                    v_before = vs[last - i_back - 1, place, :]
                    u = us[last - i_back, place, :]
                    da = project(a, da, u, v, v_before, rho, lead_axis, sums)
                    v = v_before
                u = us[steps - (k_back + 1) * segment, place, :]
                da = project(a, da, u, v, torch.ones_like(v), rho, lead_axis, sums)
                # D passes a restart unchanged, and A is diag(u) A diag(v) of the segment before
                u = us[steps - (k_back + 1) * segment - 1, place, :]
                v = vs[steps - (k_back + 1) * segment - 1, place, :]
                da = da * spread(u, lead_axis) * spread(v, trail_axis)
        a, p, q = start(read(x, x_shape, tile, n, m), n, m, eps, deepseek, lead_axis, how)
        v_0 = reciprocals(q, trail, how, False)
        if steps > 0:
            for t_back in range(head - 1):
                v_before = vs[head - 2 - t_back, place, :]
                u = us[head - 1 - t_back, place, :]
                da = project(a, da, u, v, v_before, rho, lead_axis, sums)
                v = v_before
            da = project(a, da, us[0, place, :], v, v_0, rho, lead_axis, sums)
        if deepseek:
            x32 = read(x, x_shape, tile, n, m)
            dz = softmax_gradient(x32, da, v_0, n, m, eps, lead_axis, how, summation(n, m, how))
        else:
            dz = da * a
        if dx.dim() == 2:
            dx[tile, :] = dz.to(dx.dtype).reshape(tile.block_size, n * m)
        else:
            dx[tile, :, :] = dz.to(dx.dtype)
