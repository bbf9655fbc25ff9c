"""The Helion kernel bodies of hc_split_sinkhorn: the gates, and Sinkhorn's iterations on the other columns.

A token's mixes are n + 2 rows of n: pre, post, and n rows of logits that lie in registers as Sinkhorn's
matrices do (ops.sinkhorn.iteration.read).  a = mixes * scale + base; the view of base has a batch of stride
0, so that it is read as the mixes are.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.sinkhorn.adjoint import last_iterations, pick, replay_and_take_back, softmax_gradient
from helion_sinkhorn.ops.sinkhorn.iteration import (
    is_masked,
    iterate,
    pivot,
    product,
    read,
    reciprocals,
    spread,
    start,
)
from helion_sinkhorn.runtime.device_math import LOG2E, reciprocal


def sigmoids(a, how):
    """(sigmoid(a), sigmoid(-a)): neither is one less the other, which would cancel at the ends."""
    e = torch.exp2(torch.abs(a) * -LOG2E)
    near_one = reciprocal(1.0 + e, how)
    near_zero = e * near_one
    up = a >= 0
    return torch.where(up, near_one, near_zero), torch.where(up, near_zero, near_one)


def gate_of(gates, base, scale, tile, part, how):
    """(a, mixes) of the pre (part 0) or the post (part 1) columns, (tile, n).

    The product is rounded before base is added: fused into the sum for some places of a block and not for
    others, a token's bits would depend on where it stands.
    """
    # hl.load: in a helper Helion takes an index for an operation on the host
    mix = hl.load(gates, [tile, part, slice(None)]).to(torch.float32)
    return product(mix, hl.load(scale, [part]), how) + hl.load(base, [part, slice(None)]).unsqueeze(0), mix


def gate_gradient(gates, base, scale, upstream, tile, part, factor, how):
    """(da, mixes) of the pre or the post columns, for the upstream gradient of factor * sigmoid(a)."""
    a, mix = gate_of(gates, base, scale, tile, part, how)
    sigmoid, other = sigmoids(a, how)
    return factor * hl.load(upstream, [tile, slice(None)]).to(torch.float32) * sigmoid * other, mix


def logits_of(mixed, base, scale, base_shape, tile, n, how):
    """a of the comb columns, (tile, n, n), from their mixes; rounded as in `gate_of`."""
    return product(mixed, hl.load(scale, [2]), how) + read(base, base_shape, tile, n, n)


def hc_split_sinkhorn_forward(
    gates: torch.Tensor,
    logits: torch.Tensor,
    scale: torch.Tensor,
    base_gates: torch.Tensor,
    base_logits: torch.Tensor,
    pre: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    n: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    post_mult: hl.constexpr,
    pre_eps: hl.constexpr,
    post_eps: hl.constexpr,
    transposed: hl.constexpr,
    how: hl.constexpr,
    paired: hl.constexpr,
    pivoted: hl.constexpr,
):
    """pre (T, n), post (T, n) and comb (T, n, n) or (T, n n).

    gates are the mixes, (T, n + 2, n): Helion takes 64-bit indices by the number of a tensor's elements.
    base_gates is (n + 2, n).
    """
    batch = gates.size(0)
    shape, base_shape = hl.specialize((logits.shape[1:], base_logits.shape[1:]))
    hl.specialize((gates.shape[1:], gates.stride(), logits.stride(), base_logits.stride(), base_gates.shape))
    hl.specialize((pre.shape[1:], comb.shape[1:], comb.stride()))
    masked = is_masked(n, n, how)
    steps = n_iters - 1 if deepseek else n_iters
    for tile in hl.tile(batch):
        a, _mix = gate_of(gates, base_gates, scale, tile, 0, how)
        sigmoid, _other = sigmoids(a, how)
        pre[tile, :] = (sigmoid + pre_eps).to(pre.dtype)
        a, _mix = gate_of(gates, base_gates, scale, tile, 1, how)
        sigmoid, _other = sigmoids(a, how)
        post[tile, :] = (post_mult * sigmoid + post_eps).to(post.dtype)
        x32 = logits_of(read(logits, shape, tile, n, n), base_logits, scale, base_shape, tile, n, how)
        a, p, q = start(x32, n, n, eps, deepseek, 1, how)
        if pivoted:
            a, p, q, _c, _r = pivot(a, p, q, n, n, 1, how, masked)
        if steps > 0:
            for _step in range(steps):
                p, q = iterate(a, p, q, n, n, eps, 1, how, paired, masked)
        u = spread(reciprocals(p, n, how, paired), 1)
        y = (a * u * spread(reciprocals(q, n, how, paired), 2)).to(comb.dtype)
        if transposed:
            y = y.permute(0, 2, 1)
        if comb.dim() == 2:
            comb[tile, :] = y.reshape(tile.block_size, n * n)
        else:
            comb[tile, :, :] = y


def hc_split_sinkhorn_backward(
    gates: torch.Tensor,
    logits: torch.Tensor,
    scale: torch.Tensor,
    base_gates: torch.Tensor,
    base_logits: torch.Tensor,
    dpre: torch.Tensor | None,
    dpost: torch.Tensor | None,
    dcomb: torch.Tensor | None,
    dgates: torch.Tensor,
    dlogits: torch.Tensor,
    sum_gates: torch.Tensor,
    sum_logits: torch.Tensor,
    sum_scale: torch.Tensor,
    n: hl.constexpr,
    n_iters: hl.constexpr,
    eps: hl.constexpr,
    deepseek: hl.constexpr,
    post_mult: hl.constexpr,
    transposed: hl.constexpr,
    length: hl.constexpr,
    head: hl.constexpr,
    how: hl.constexpr,
    paired: hl.constexpr,
    pivoted: hl.constexpr,
    lean: hl.constexpr,
):
    """dmixes: two rows of dgates (T, n + 2, n), and dlogits (T, n n) or (T, n, n).

    `head` segments of `length` iterations are replayed with their scaling vectors in registers, as in
    `sinkhorn_backward`.  Sums of da and of da * mixes over tokens have a row for each tile: sum_gates
    (tiles, 2, n), sum_logits (tiles, n, n) and sum_scale (tiles, 3).
    """
    batch = gates.size(0)
    shape, base_shape = hl.specialize((logits.shape[1:], base_logits.shape[1:]))
    hl.specialize((gates.shape[1:], gates.stride(), logits.stride(), base_logits.stride(), base_gates.shape))
    hl.specialize((dgates.stride(), dlogits.shape[1:], dlogits.stride()))
    hl.specialize((sum_gates.shape[1:], sum_gates.stride(), sum_logits.shape[1:], sum_logits.stride()))
    hl.specialize(sum_scale.stride())
    if dcomb is not None:
        dcomb_shape = hl.specialize(dcomb.shape[1:])
        hl.specialize(dcomb.stride())
    masked = is_masked(n, n, how)
    steps = n_iters - 1 if deepseek else n_iters
    rest = steps - head * length
    for tile in hl.tile(batch):
        if dpre is not None:
            da_pre, mix_pre = gate_gradient(gates, base_gates, scale, dpre, tile, 0, 1.0, how)
            hl.store(dgates, [tile, 0, slice(None)], (da_pre * hl.load(scale, [0])).to(dgates.dtype))
            hl.store(sum_gates, [tile.id, 0, slice(None)], da_pre.sum(0))
            hl.store(sum_scale, [tile.id, 0], (da_pre * mix_pre).sum(1).sum(0))
        if dpost is not None:
            da_post, mix_post = gate_gradient(gates, base_gates, scale, dpost, tile, 1, post_mult, how)
            hl.store(dgates, [tile, 1, slice(None)], (da_post * hl.load(scale, [1])).to(dgates.dtype))
            hl.store(sum_gates, [tile.id, 1, slice(None)], da_post.sum(0))
            hl.store(sum_scale, [tile.id, 1], (da_post * mix_post).sum(1).sum(0))
        if dcomb is not None:
            x32 = logits_of(read(logits, shape, tile, n, n), base_logits, scale, base_shape, tile, n, how)
            a, p, q = start(x32, n, n, eps, deepseek, 1, how)
            if pivoted:
                a, p, q, _c, r = pivot(a, p, q, n, n, 1, how, masked)
            # + 0: as in sinkhorn_backward (docs/helion.md)
            p_starts = [p + 0.0] * (head + 1)
            q_starts = [q + 0.0] * (head + 1)
            if head > 0:
                for s in hl.static_range(head):
                    for _step in range(length):
                        p, q = iterate(a, p, q, n, n, eps, 1, how, paired, masked)
                    p_starts[s + 1] = p + 0.0
                    q_starts[s + 1] = q + 0.0
            dy = read(dcomb, dcomb_shape, tile, n, n)
            if transposed:
                dy = dy.permute(0, 2, 1)
            da = last_iterations(
                a, dy, p_starts[head], q_starts[head], rest, n, n, eps, 1, how, paired, masked, lean
            )
            if head > 0:
                k = hl.full([], head - 1, dtype=torch.int32)
                for _segment in range(head):
                    da = replay_and_take_back(
                        a, da, pick(p_starts, head, k), pick(q_starts, head, k), length,
                        n, n, eps, 1, how, paired, masked, lean,
                    )  # fmt: skip
                    k = k - 1
            mixed = read(logits, shape, tile, n, n)
            if deepseek:
                v = reciprocals(q_starts[0], n, how, paired)
                if pivoted:
                    da = da * spread(p_starts[0], 1) * spread(r, 2)
                    v = v * r
                # anew: kept, the logits would hold a matrix of registers through all segments
                x32 = logits_of(mixed, base_logits, scale, base_shape, tile, n, how)
                dz = softmax_gradient(x32, da, v, n, n, eps, 1, how)
            else:
                dz = da * a
            sum_logits[tile.id, :, :] = dz.sum(0)
            hl.store(sum_scale, [tile.id, 2], (dz * mixed).sum(2).sum(1).sum(0))
            dx = (dz * hl.load(scale, [2])).to(dlogits.dtype)
            if dlogits.dim() == 2:
                dlogits[tile, :] = dx.reshape(tile.block_size, n * n)
            else:
                dlogits[tile, :, :] = dx
