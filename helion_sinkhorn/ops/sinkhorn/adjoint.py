"""The adjoint of Sinkhorn-Knopp iterations by projections (docs/dev/math.md, Adjoint).

With P' = diag(u) A diag(v) after a half-step and D = A * dA the gradient with respect to log P', the
gradient before it is D - P' * (line sums of D): in terms of dA two sums and a rank-one update,

    trail half-step:  s_j = sum_i A_ij dA_ij;  dA <- dA - u_t (v_t * s)'
    lead half-step:   s_i = sum_j A_ij dA_ij;  dA <- dA - rho (u_t * s) v_(t-1)'

A half-step subtracts the line sums of D as computed, with what rounding left in them.

Where the log form restarts, the kernels keep D itself (`of_log`), which costs one more product for each entry
and half-step.  An entry of A below the smallest normal number is 0, but its D may be as large as any, since A
changes at the restart: A * dA would lose it, and dA would overflow.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.iteration import (
    contract,
    largest,
    product,
    products,
    reciprocals,
    softmax,
    spread,
    total,
)
from helion_sinkhorn.runtime.binade import binade


def of_order_one(gradient, sums):
    """(gradient / s, s) with s (tile, 1, 1) a power of two near the largest entry of each matrix.

    What is linear in the gradient then has the same bits at any scale of it.
    """
    s, reciprocal_of_s = binade(largest(gradient.abs(), 1, sums).amax(1))
    return gradient * reciprocal_of_s.unsqueeze(1).unsqueeze(2), s.unsqueeze(1).unsqueeze(2)


def replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, sums):
    """Run `steps` iterations from (p, q) and return the lists u_1 .. u_steps and v_0 .. v_steps."""
    rho = lead / trail
    us, vs = [], [reciprocals(q, trail, how, paired, sums["rounded"])]
    for _ in range(steps):
        p = rho * (contract(a, vs[-1], lead_axis, sums) + eps * p)
        us.append(reciprocals(p, lead, how, paired, sums["rounded"]))
        q = contract(a, us[-1], 3 - lead_axis, sums) + (eps / rho) * q
        vs.append(reciprocals(q, trail, how, paired, sums["rounded"]))
    return us, vs


def u_again(a, p, vs, t, lead, trail, eps, lead_axis, how, paired, sums):
    """u_(t+1) of a replayed segment that began with p, from v only.

    Its eps term needs p_t, for which rho A v_(t-1) is taken: the difference is of order eps^2, below
    float32's resolution.
    """
    rho = lead / trail
    if t == 0 or eps == 0.0:
        p = rho * (contract(a, vs[t], lead_axis, sums) + eps * p)
        return reciprocals(p, lead, how, paired, sums["rounded"])
    both = vs[t] + (eps * rho) * vs[t - 1]
    return reciprocals(rho * contract(a, both, lead_axis, sums), lead, how, paired, sums["rounded"])


def line_sums(a, da, axis, sums, of_log=False):
    """The sums of D = A * dA along lines, one for each index of `axis`; with of_log `da` is D."""
    return total(da if of_log else products(a, da, 3 - axis, sums), 3 - axis, sums)


def over_block(w, axis):
    """A vector spread over the block; what is already spread is returned as it is."""
    return spread(w, axis) if w.dim() == 2 else w


def scaled(w, s, axis):
    """w s over the block; s has an entry for each index of `axis`, and w has too or is already spread."""
    return spread(w * s, axis) if w.dim() == 2 else w * spread(s, axis)


def project_trail(a, da, u, v, lead_axis, sums, of_log=False):
    """dA before the trail half-step that made v, from dA after it; u and v may be spread over the block.

    With of_log both are D instead of dA.
    """
    trail_axis = 3 - lead_axis
    s = line_sums(a, da, trail_axis, sums, of_log)
    change = over_block(u, lead_axis) * scaled(v, s, trail_axis)
    return da - (a * change if of_log else change)


def project(a, da, u, v, v_before, rho, lead_axis, sums, of_log=False):
    """dA before the iteration from v_before to (u, v), from dA after it; vectors may be spread.

    With of_log both are D instead of dA.
    """
    da = project_trail(a, da, u, v, lead_axis, sums, of_log)
    s = rho * line_sums(a, da, lead_axis, sums, of_log)
    change = scaled(u, s, lead_axis) * over_block(v_before, 3 - lead_axis)
    return da - (a * change if of_log else change)


def take_back(a, da, p, us, vs, lead, trail, eps, lead_axis, how, paired, sums, lean, of_log=False):
    """dA before a replayed segment that began with p; with lean each u_t is computed again, none is kept."""
    for t in range(len(us) - 1, -1, -1):
        u = u_again(a, p, vs, t, lead, trail, eps, lead_axis, how, paired, sums) if lean else us[t]
        da = project(a, da, u, vs[t + 1], vs[t], lead / trail, lead_axis, sums, of_log)
    return da


def replay_and_take_back(
    a, da, p, q, steps, lead, trail, eps, lead_axis, how, paired, sums, lean, of_log=False
):
    """dA before `steps` iterations from (p, q)."""
    us, vs = replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, sums)
    return take_back(a, da, p, us, vs, lead, trail, eps, lead_axis, how, paired, sums, lean, of_log)


def last_iterations(
    a, gradient, p, q, steps, lead, trail, eps, lead_axis, how, paired, sums, lean, twice=False, of_log=False
):
    """dA before the last `steps` iterations from (p, q), from the gradient with respect to diag(u) A diag(v).

    twice: project twice.  Without eps this is the same projection, and the second one removes what rounding
    left of line sums as large as dY, which would hide a gradient that nearly vanishes.
    """
    us, vs = replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, sums)
    u = us[-1] if us else reciprocals(p, lead, how, paired)
    if of_log:
        da = product(a * spread(u, lead_axis) * spread(vs[-1], 3 - lead_axis), gradient, sums["rounded"])
    else:
        da = product(gradient * spread(u, lead_axis), spread(vs[-1], 3 - lead_axis), sums["rounded"])
    if twice:
        da = project_trail(a, da, u, vs[-1], lead_axis, sums)
    return take_back(a, da, p, us, vs, lead, trail, eps, lead_axis, how, paired, sums, lean, of_log)


def softmax_gradient(x32, da, v, n, m, eps, lead_axis, how, sums):
    """dX of the deepseek form from dA before the first iteration: through its trail step and the softmax."""
    trail_axis = 3 - lead_axis
    z = softmax(x32, n, m, trail_axis, how)
    da = da - spread(v * line_sums(z + eps, da, trail_axis, sums), trail_axis)
    dz = product(da, z, sums["rounded"])
    return dz - z * spread(total(dz, trail_axis, sums), lead_axis)


def pick(values, count, k):
    """values[k] for a k < count that is known only on the device."""
    chosen = values[0]
    for i in range(1, count):
        chosen = torch.where(k == i, values[i], chosen)
    return chosen
