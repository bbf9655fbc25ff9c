"""The Helion kernel bodies: Sinkhorn-Knopp forward and its exact adjoint.

Every iterate is P = diag(u) A diag(v) with A fixed, so an iteration is two matvecs.  Kept
are the *reciprocals* p = 1/u and q = 1/v, because eps enters them linearly (docs/math.md):

    p_t = rho (A v_{t-1} + eps p_{t-1}),  u_t = 1 / p_t        lead half-step
    q_t = A' u_t + (eps / rho) q_{t-1},   v_t = 1 / q_t        trail half-step

Lead is the side normalised first (rows; columns with lead_axis = 2), trail the other one,
and rho = |lead| / |trail| keeps u and v from drifting when the matrix is rectangular.
Axes of a (tile, n, m) block: 1 numbers its rows, 2 its columns.  A lead vector of
lead_axis = 1 has one entry a row and is a sum over axis 2.

The functions are plain; `helion_sinkhorn.kernels.build` decorates them with a fixed config.
Helion runs the helpers as ordinary Python while it traces: their lists and loops unroll.
"""

from __future__ import annotations

import helion.language as hl
import torch

LOG2E = 1.4426950408889634
LN2 = 0.6931471805599453
# q_0 = exp(-column potential) is capped at 2^60: a column that far below the maxima of its
# rows adds under one part in 2^60 to a row sum, and a product of two such q stays finite.
LOG2_MAX_Q0 = 60.0
# u and v stay below this (scaling.EXPONENT_BUDGET)
LARGEST_SCALE = 2.0**100


def reciprocal(x, how):
    """1 / x elementwise: "ptx" and "gcn" are one instruction of 1 ulp, "full" is the backend's division."""
    if how == "ptx":
        asm, registers = "rcp.approx.ftz.f32 $0, $1;", "=f,f"
    elif how == "gcn":
        asm, registers = "v_rcp_f32 $0, $1", "=v,v"
    else:
        return 1.0 / x
    return hl.inline_asm_elementwise(asm, registers, [x], dtype=torch.float32, is_pure=True, pack=1)


def is_padded(k):
    """Whether Triton pads an axis of k entries: its extents are powers of two."""
    return (k & (k - 1)) != 0


def bounded(x, most, *extents):
    """x, which is at most `most` inside the matrix, kept finite outside it.

    Helion masks what it sums, but takes 0 * w for 0 there, whatever w is; so w must not be inf or NaN.
    """
    return x.clamp(max=most) if any(is_padded(k) for k in extents) else x


def reciprocals(x, k, how, paired):
    """1 / x for x (tile, k); `paired` takes 1/a and 1/b from one 1/(ab), three products for a reciprocal."""
    if not paired or k == 1:
        return bounded(reciprocal(x, how), LARGEST_SCALE, k)
    tile = x.size(0)
    a, b = hl.split(x.view(tile, k // 2, 2))
    shared = reciprocal(a * b, how)
    return hl.join(shared * b, shared * a).view(tile, k)


def of_fixed_size(x, n, m):
    """x (tile, n, m): Helion 1.5 may fail over an axis it thinks of cutting into chunks (docs/helion.md)."""
    return x if is_padded(n) or is_padded(m) else x.view(x.size(0), n, m)


def spread(w, axis):
    """A vector with one entry per index of `axis`, broadcast over the (tile, n, m) block."""
    return w.unsqueeze(3 - axis)


def is_masked(n, m, how):
    """Whether sums must leave out padding, or are those of a machine that knows no Triton."""
    return how == "full" or is_padded(n) or is_padded(m)


def total(x, axis, masked):
    """The sum of x (tile, n, m) over `axis`.

    Helion would mask what lies beyond the batch too, entry by entry: a select for each product of a
    matvec, and no fused multiply-add.  Those matrices are never stored, so whatever they sum to is no matter.
    """
    if masked:
        return x.sum(axis)
    like = hl.zeros([x.size(0), x.size(3 - axis)], dtype=torch.float32)
    return hl.inline_triton(f"tl.sum({{0}}, {axis})", (x,), like)


def largest(x, axis, masked):
    """The maximum of x (tile, n, m) over `axis`; a NaN need not win, it ends in a sum of its line."""
    if masked:
        return x.amax(axis)
    like = hl.zeros([x.size(0), x.size(3 - axis)], dtype=torch.float32)
    return hl.inline_triton(f"tl.max({{0}}, {axis})", (x,), like)


def product(x, y, how):
    """x y elementwise, rounded: no compiler fuses it into the sum that it goes to."""
    if how == "ptx":
        asm, registers = "mul.rn.f32 $0, $1, $2;", "=f,f,f"
    elif how == "gcn":
        asm, registers = "v_mul_f32 $0, $1, $2", "=v,v,v"
    else:
        return x * y
    return hl.inline_asm_elementwise(asm, registers, [x, y], dtype=torch.float32, is_pure=True, pack=1)


def contract(a, w, axis, masked, rounded=None):
    """The matvec that leaves one entry per index of `axis`; w has one per index of the other axis.

    rounded: how `product` multiplies, None to let products fuse.  Threads that add up a line with one
    entry each fuse their own product and not the others', so that they end with different last bits.
    """
    w = spread(w, 3 - axis)
    return total(a * w if rounded is None else product(a, w, rounded), 3 - axis, masked)


def gather(pieces, tile, n, m):
    """(tile, n, m) from n m / c pieces (tile, c): `join` keeps a matrix in one thread's registers."""

    def joined(parts):
        return parts[0] if len(parts) == 1 else hl.join(joined(parts[0::2]), joined(parts[1::2]))

    bits = len(pieces).bit_length() - 1
    return joined(pieces).permute(0, *range(2, 2 + bits), 1).reshape(tile, n, m)


def constant(value, a, axis):
    """A vector of one value for every index of `axis`."""
    return hl.full([a.size(0), a.size(axis)], value, dtype=torch.float32)


def softmax(x, n, m, axis, how):
    """exp(x - max) / sum over `axis`, (tile, n, m)."""
    masked = is_masked(n, m, how)
    e = torch.exp2(bounded(x - spread(largest(x, axis, masked), 3 - axis), 0.0, n, m) * LOG2E)
    e_sum = total(e, axis, masked)
    return e * bounded(reciprocal(e_sum, how), 1.0, n, m).unsqueeze(axis)


def start(x32, n, m, eps, deepseek, lead_axis, how):
    """(z, a, p, q) before the first counted iteration: z the softmax (deepseek) or the balanced logits."""
    masked = is_masked(n, m, how)
    trail_axis = 3 - lead_axis
    if deepseek:
        z = softmax(x32, n, m, trail_axis, how)
        a = z + eps
        q = total(a, lead_axis, masked) + eps
        return z, a, constant(1.0, a, lead_axis), q
    # potentials: the maximum of every lead line, then of every trail line, becomes exp(0) = 1
    z = bounded(x32 - spread(largest(x32, trail_axis, masked), lead_axis), 0.0, n, m)
    top = largest(z, lead_axis, masked)
    z = bounded(z - spread(top, trail_axis), 0.0, n, m)
    a = torch.exp2(z * LOG2E)
    q = torch.exp2(torch.clamp(top * -LOG2E, max=LOG2_MAX_Q0))
    return z, a, constant(1.0, a, lead_axis), q


def is_first(k):
    """(1, k): True for the first of k lines."""
    return hl.arange(k).unsqueeze(0) == 0


def first_of(w, is_line, axis, masked):
    """The entry of w on the one line along `axis` that is_line names; -0 is neutral in a sum of floats."""
    return total(torch.where(is_line, w, -0.0), axis, masked)


def pivot(a, p, q, lead, trail, lead_axis, how, masked):
    """(a, p, q, c, r): A rescaled by c_i r_j to ones in its first row and column, p and q with it.

    u A v and so the iterations stay what they are, and a matvec saves the products with those ones.
    Constants to the adjoint: no result depends on them.
    """
    first_lead, first_trail = spread(is_first(lead), lead_axis), spread(is_first(trail), 3 - lead_axis)
    c = reciprocal(first_of(a, first_trail, 3 - lead_axis, masked), how)
    line = first_of(a, first_lead, lead_axis, masked)
    corner = torch.where(is_first(trail), line, -0.0).sum(1).unsqueeze(1)
    r = torch.where(is_first(trail), 1.0, reciprocal(line, how) * corner)
    scaled = (a * spread(c, lead_axis)) * spread(r, 3 - lead_axis)
    return torch.where(first_lead | first_trail, 1.0, scaled), p * c, q * r, c, r


def lead_size(n, m, lead_axis):
    """Lines of the lead side; lead_size(m, n, ..) are those of the trail side."""
    return n if lead_axis == 1 else m


def absorb(z, p, q, lead_axis):
    """Move log u and log v into the logits, so that u and v start again from 1 inside the range of fp32."""
    return z - spread(torch.log2(p) * LN2, lead_axis) - spread(torch.log2(q) * LN2, 3 - lead_axis)


def replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, masked):
    """`steps` iterations from (p, q): the lists u_1 .. u_steps and v_0 .. v_steps."""
    rho = lead / trail
    us, vs = [], [reciprocals(q, trail, how, paired)]
    for _ in range(steps):
        p = rho * (contract(a, vs[-1], lead_axis, masked) + eps * p)
        us.append(reciprocals(p, lead, how, paired))
        q = contract(a, us[-1], 3 - lead_axis, masked) + (eps / rho) * q
        vs.append(reciprocals(q, trail, how, paired))
    return us, vs


def reverse_step(a, da, gu, gv, gp, gq, u, v, v_before, eps, rho, lead_axis, masked, rounded=None):
    """Adjoint of one iteration (v_before, p, q) -> (u, v): the cotangents da, gv, gp, gq before it.

    gu None: u has no cotangent from behind this iteration.
    """
    trail_axis = 3 - lead_axis
    gq = (eps / rho) * gq - (gv * v) * v
    da = da + spread(u, lead_axis) * spread(gq, trail_axis)
    inner = contract(a, gq, lead_axis, masked, rounded)
    if gu is not None:
        inner = inner + gu
    gp = rho * (eps * gp - (inner * u) * u)
    da = da + spread(gp, lead_axis) * spread(v_before, trail_axis)
    return da, contract(a, gp, trail_axis, masked, rounded), gp, gq


def output_adjoint(a, dy, u, v, lead_axis, masked):
    """Cotangents of A, u and v in P = diag(u) A diag(v)."""
    da = dy * spread(u, lead_axis) * spread(v, 3 - lead_axis)
    return da, contract(a * dy, v, lead_axis, masked), contract(a * dy, u, 3 - lead_axis, masked)


def reverse(a, da, gu, gv, gp, gq, us, vs, rho, eps, lead_axis, masked):
    """Adjoint of a replayed segment, its last iteration first: (da, gv, gp, gq) before it."""
    for t in range(len(us) - 1, -1, -1):
        da, gv, gp, gq = reverse_step(
            a, da, gu, gv, gp, gq, us[t], vs[t + 1], vs[t], eps, rho, lead_axis, masked
        )
        gu = None
    return da, gv, gp, gq


def replay_and_reverse(a, da, gv, gp, gq, p, q, steps, lead, trail, eps, lead_axis, how, paired, masked):
    """`replay` from (p, q), then `reverse`; u has no cotangent from behind a whole segment."""
    us, vs = replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, masked)
    return reverse(a, da, None, gv, gp, gq, us, vs, lead / trail, eps, lead_axis, masked)


def last_segment(a, dy, p, q, steps, lead, trail, eps, lead_axis, how, paired, masked):
    """From dP through the last `steps` iterations: (da, gv, gp, gq) before them."""
    us, vs = replay(a, p, q, steps, lead, trail, eps, lead_axis, how, paired, masked)
    u = us[-1] if us else reciprocals(p, lead, how, paired)
    da, gu, gv = output_adjoint(a, dy, u, vs[-1], lead_axis, masked)
    gp, gq = constant(0.0, a, lead_axis), constant(0.0, a, 3 - lead_axis)
    return reverse(a, da, gu, gv, gp, gq, us, vs, lead / trail, eps, lead_axis, masked)


def pick(values, k):
    """values[k] for a scalar k known only on the device."""
    chosen = values[0]
    for i in range(1, len(values)):
        chosen = torch.where(k == i, values[i], chosen)
    return chosen


def logit_gradient(z, a, da, gv, gq, v, eps, rho, deepseek, lead_axis, masked):
    """dX from dA: through the first trail step and the softmax (deepseek), or through exp."""
    if not deepseek:
        return da * a
    gq = (eps / rho) * gq - (gv * v) * v
    dz = (da + spread(gq, 3 - lead_axis)) * z
    return dz - z * spread(total(dz, 3 - lead_axis, masked), lead_axis)


def sinkhorn_forward(
    x: torch.Tensor,
    out: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    lead_axis: hl.constexpr,
    segment: hl.constexpr,
    how: hl.constexpr,
    paired: hl.constexpr,
    packed: hl.constexpr,
    pivoted: hl.constexpr,
):
    """P after `n_iters` iterations.  x and out are (B, n, m); packed: x (B, pieces, c), out (B, n m).

    Packed loads bring every matrix whole into one thread, 16 bytes at a time.  The store is of
    the flat tile instead: through shared memory into full cache lines, where a thread's own
    pieces would write half sectors.
    """
    batch = x.size(0)
    x_pieces = hl.specialize(x.size(1))
    hl.specialize((x.size(2), x.stride(), out.shape[1:], out.stride()))
    masked = is_masked(n, m, how)
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    rho = lead / trail
    steps = n_iters - 1 if deepseek else n_iters
    restarts = (steps - 1) // segment if steps > 0 else 0
    for tile in hl.tile(batch):
        if packed:
            pieces = [x[tile, i, :] for i in hl.static_range(x_pieces)]
            x32 = gather(pieces, tile.block_size, n, m).to(torch.float32)
        else:
            x32 = x[tile, :, :].to(torch.float32)
        z, a, p, q = start(x32, n, m, eps, deepseek, lead_axis, how)
        if pivoted:
            a, p, q, _c, _r = pivot(a, p, q, lead, trail, lead_axis, how, masked)
        if steps > 0:
            for _step in range(steps - restarts * segment):
                p = rho * (contract(a, reciprocals(q, trail, how, paired), lead_axis, masked) + eps * p)
                q = contract(a, reciprocals(p, lead, how, paired), trail_axis, masked) + (eps / rho) * q
        if restarts > 0:
            for _restart in range(restarts):
                z = absorb(z, p, q, lead_axis)
                a = torch.exp2(bounded(z, 1.0, n, m) * LOG2E)
                p = torch.ones_like(p)
                q = torch.ones_like(q)
                for _segment_step in range(segment):
                    p = rho * contract(a, reciprocals(q, trail, how, paired), lead_axis, masked)
                    q = contract(a, reciprocals(p, lead, how, paired), trail_axis, masked)
        u = spread(reciprocals(p, lead, how, paired), lead_axis)
        y = (a * u * spread(reciprocals(q, trail, how, paired), trail_axis)).to(out.dtype)
        if packed:
            out[tile, :] = y.reshape(tile.block_size, n * m)
        else:
            out[tile, :, :] = y


def sinkhorn_backward(
    x: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    lead_axis: hl.constexpr,
    length: hl.constexpr,
    how: hl.constexpr,
    paired: hl.constexpr,
    packed: hl.constexpr,
    pivoted: hl.constexpr,
):
    """dX of the iterations run, their u_t and v_t in registers; shapes as in `sinkhorn_forward`.

    Segments of `length` iterations are run forward first, only (p, q) at their starts kept,
    and the 1 to `length` iterations left over last.  Then, last first, each is replayed with
    its history in registers and reversed.  One copy of that code serves all segments: unrolled
    over all iterations it runs 6 % faster at n = 4 and takes twice as long to compile.
    Without restarts: the caller keeps n_iters inside one range of fp32.
    """
    batch = x.size(0)
    x_pieces, dy_pieces = hl.specialize((x.size(1), dy.size(1)))
    hl.specialize((x.size(2), x.stride(), dy.size(2), dy.stride(), dx.shape[1:], dx.stride()))
    masked = is_masked(n, m, how)
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    rho = lead / trail
    steps = n_iters - 1 if deepseek else n_iters
    segments = (steps - 1) // length if steps > 0 else 0
    for tile in hl.tile(batch):
        if packed:
            x_parts = [x[tile, i, :] for i in hl.static_range(x_pieces)]
            dy_parts = [dy[tile, i, :] for i in hl.static_range(dy_pieces)]
            x32 = gather(x_parts, tile.block_size, n, m).to(torch.float32)
            dy32 = gather(dy_parts, tile.block_size, n, m).to(torch.float32)
        else:
            x32 = of_fixed_size(x[tile, :, :].to(torch.float32), n, m)
            dy32 = of_fixed_size(dy[tile, :, :].to(torch.float32), n, m)
        z, a, p, q = start(x32, n, m, eps, deepseek, lead_axis, how)
        if pivoted:
            a, p, q, _c, r = pivot(a, p, q, lead, trail, lead_axis, how, masked)
        # + 0: Helion 1.5 lets a later loop that carries p overwrite the value kept here (docs/helion.md)
        p_starts = [p + 0.0] * (segments + 1)
        q_starts = [q + 0.0] * (segments + 1)
        if segments > 0:
            for s in hl.static_range(segments):
                for _step in range(length):
                    p = rho * (contract(a, reciprocals(q, trail, how, paired), lead_axis, masked) + eps * p)
                    q = contract(a, reciprocals(p, lead, how, paired), trail_axis, masked) + (eps / rho) * q
                p_starts[s + 1] = p + 0.0
                q_starts[s + 1] = q + 0.0
        da, gv, gp, gq = last_segment(
            a, dy32, p, q, steps - segments * length, lead, trail, eps, lead_axis, how, paired, masked
        )
        if segments > 0:
            k = hl.full([], segments - 1, dtype=torch.int32)
            for _segment in range(segments):
                da, gv, gp, gq = replay_and_reverse(
                    a, da, gv, gp, gq, pick(p_starts, k), pick(q_starts, k), length,
                    lead, trail, eps, lead_axis, how, paired, masked,
                )  # fmt: skip
                k = k - 1
        v = reciprocals(q_starts[0], trail, how, paired)
        if pivoted:
            # p_0 = 1 before it
            da = da * spread(p_starts[0], lead_axis) * spread(r, trail_axis)
            gv, gq = gv * r, gq * r
        if deepseek:
            # anew: z would hold a matrix of registers through all segments
            if packed:
                x_again = [
                    hl.load(x, [tile, i, slice(None)], eviction_policy="evict_first")
                    for i in hl.static_range(x_pieces)
                ]
                x32 = gather(x_again, tile.block_size, n, m).to(torch.float32)
            else:
                x32 = hl.load(x, [tile, slice(None), slice(None)], eviction_policy="evict_first").to(
                    torch.float32
                )
            z = softmax(x32, n, m, trail_axis, how)
        dz = logit_gradient(z, a, da, gv, gq, v, eps, rho, deepseek, lead_axis, masked)
        dz = dz.to(dx.dtype)
        if packed:
            dx[tile, :] = dz.reshape(tile.block_size, n * m)
        else:
            dx[tile, :, :] = dz


def sinkhorn_backward_history(
    x: torch.Tensor,
    dy: torch.Tensor,
    dx: torch.Tensor,
    us: torch.Tensor,
    vs: torch.Tensor,
    logits: torch.Tensor,
    n: hl.constexpr,
    m: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    lead_axis: hl.constexpr,
    segment: hl.constexpr,
    how: hl.constexpr,
):
    """dX of the iterations run, for any number of them: u_t and v_t pass through memory.

    us (steps, B, |lead|) and vs (steps, B, |trail|) are scratch of one launch; the caller
    launches few enough matrices at a time for them to stay in L2.  logits (restarts, B, n, m)
    holds what every restart of the log form began from.
    """
    batch = x.size(0)
    hl.specialize((x.shape[1:], x.stride(), dy.shape[1:], dy.stride(), dx.shape[1:], dx.stride()))
    hl.specialize((us.size(2), vs.size(2), logits.shape[2:]))
    masked = is_masked(n, m, how)
    # whichever thread stores u_t or v_t: from 32 x 32 on each has several entries of every line
    rounded = how if n * m < 1024 else None
    trail_axis = 3 - lead_axis
    lead, trail = lead_size(n, m, lead_axis), lead_size(m, n, lead_axis)
    rho = lead / trail
    steps = n_iters - 1 if deepseek else n_iters
    restarts = (steps - 1) // segment if steps > 0 else 0
    head = steps - restarts * segment
    for tile in hl.tile(batch):
        z, a, p, q = start(x[tile, :, :].to(torch.float32), n, m, eps, deepseek, lead_axis, how)
        u = reciprocals(p, lead, how, False)
        v = reciprocals(q, trail, how, False)
        if steps > 0:
            for t in range(head):
                p = rho * (contract(a, v, lead_axis, masked, rounded) + eps * p)
                u = reciprocals(p, lead, how, False)
                q = contract(a, u, trail_axis, masked, rounded) + (eps / rho) * q
                v = reciprocals(q, trail, how, False)
                us[t, tile, :] = u
                vs[t, tile, :] = v
        if restarts > 0:
            for k in range(restarts):
                z = absorb(z, p, q, lead_axis)
                logits[k, tile, :, :] = z
                a = torch.exp2(bounded(z, 1.0, n, m) * LOG2E)
                v = torch.ones_like(v)
                for i in range(segment):
                    p = rho * contract(a, v, lead_axis, masked, rounded)
                    u = reciprocals(p, lead, how, False)
                    q = contract(a, u, trail_axis, masked, rounded)
                    v = reciprocals(q, trail, how, False)
                    us[head + k * segment + i, tile, :] = u
                    vs[head + k * segment + i, tile, :] = v
        da, gu, gv = output_adjoint(a, dy[tile, :, :].to(torch.float32), u, v, lead_axis, masked)
        gp = torch.zeros_like(gu)
        gq = torch.zeros_like(gv)
        dz_restarts = torch.zeros_like(da)
        if restarts > 0:
            for k_back in range(restarts):
                a = torch.exp2(logits[restarts - 1 - k_back, tile, :, :] * LOG2E)
                last = steps - 1 - k_back * segment
                for i_back in range(segment - 1):
                    before = vs[last - i_back - 1, tile, :]
                    da, gv, gp, gq = reverse_step(
                        a,
                        da,
                        gu,
                        gv,
                        gp,
                        gq,
                        us[last - i_back, tile, :],
                        v,
                        before,
                        0.0,
                        rho,
                        lead_axis,
                        masked,
                        rounded,
                    )
                    gu = torch.zeros_like(gu)
                    v = before
                first = steps - (k_back + 1) * segment
                da, gv, gp, gq = reverse_step(
                    a,
                    da,
                    gu,
                    gv,
                    gp,
                    gq,
                    us[first, tile, :],
                    v,
                    torch.ones_like(v),
                    0.0,
                    rho,
                    lead_axis,
                    masked,
                    rounded,
                )
                gu = torch.zeros_like(gu)
                dz_restarts = dz_restarts + da * a
                da = torch.zeros_like(da)
                # sums of dz are the cotangents of log u and log v: taken anew, their rounding errors
                # are removed by the older segment as those of dP are
                u = us[first - 1, tile, :]
                v = vs[first - 1, tile, :]
                gu = total(dz_restarts, trail_axis, masked) * reciprocals(u, lead, how, False)
                gv = total(dz_restarts, lead_axis, masked) * reciprocals(v, trail, how, False)
        z, a, p, q = start(x[tile, :, :].to(torch.float32), n, m, eps, deepseek, lead_axis, how)
        v_0 = reciprocals(q, trail, how, False)
        if steps > 0:
            for t_back in range(head - 1):
                before = vs[head - 2 - t_back, tile, :]
                da, gv, gp, gq = reverse_step(
                    a,
                    da,
                    gu,
                    gv,
                    gp,
                    gq,
                    us[head - 1 - t_back, tile, :],
                    v,
                    before,
                    eps,
                    rho,
                    lead_axis,
                    masked,
                    rounded,
                )
                gu = torch.zeros_like(gu)
                v = before
            da, gv, gp, gq = reverse_step(
                a, da, gu, gv, gp, gq, us[0, tile, :], v, v_0, eps, rho, lead_axis, masked, rounded
            )
        dz = dz_restarts + logit_gradient(z, a, da, gv, gq, v_0, eps, rho, deepseek, lead_axis, masked)
        dx[tile, :, :] = dz.to(dx.dtype)
