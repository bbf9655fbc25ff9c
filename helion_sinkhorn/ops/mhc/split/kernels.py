"""The Helion kernel bodies of hc_split_sinkhorn: the gates, and Sinkhorn's iterations on the other columns.

A token's mixes are n + 2 rows of n: pre, post, and n rows of logits, which lie in registers as Sinkhorn's
matrices do (ops.sinkhorn.loads.read).  a = mixes * scale + base; base is viewed with a batch dimension of
stride 0, so that it is read like the mixes.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.split.reduction import norm_of, with_splits
from helion_sinkhorn.ops.sinkhorn.adjoint import (
    last_iterations,
    of_order_one,
    pick,
    replay_and_take_back,
    softmax_gradient,
)
from helion_sinkhorn.ops.sinkhorn.iteration import (
    fixed_summation,
    iterate,
    pivot,
    product,
    reciprocals,
    spread,
    start,
)
from helion_sinkhorn.ops.sinkhorn.loads import read
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow
from helion_sinkhorn.runtime.device_math import LOG2E, reciprocal


def sigmoids(a, how):
    """(sigmoid(a), sigmoid(-a)); neither is computed as 1 minus the other, which would cancel."""
    e = torch.exp2(torch.abs(a) * -LOG2E)
    near_one = reciprocal(1.0 + e, how)
    near_zero = e * near_one
    up = a >= 0
    return torch.where(up, near_one, near_zero), torch.where(up, near_zero, near_one)


def gate_mixes(gates, tile, part):
    """The mixes of the pre (part 0) or the post (part 1) columns, (tile, n)."""
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    return hl.load(gates, [tile, part, slice(None)]).to(torch.float32)


def gate_of(mix, base, scale, part, how):
    """a of the pre or the post columns, (tile, n), from their mixes.

    The product is rounded before base is added.  A compiler may fuse product and sum in some places of a
    block and not in others, and a token's bits would depend on its place.
    """
    return product(mix, hl.load(scale, [part]), how) + hl.load(base, [part, slice(None)]).unsqueeze(0)


def gate_gradient(mix, grad, base, scale, part, factor, how):
    """da of the pre or the post columns, for the upstream gradient of factor * sigmoid(a)."""
    sigmoid, other = sigmoids(gate_of(mix, base, scale, part, how), how)
    return factor * grad.to(torch.float32) * sigmoid * other


def store_gates(da, mix, scale, dgates, sum_gates, sum_scale, tile, part, sums):
    """Store the gradient of the mixes of the pre or the post columns; sum da and da * mixes."""
    if dgates is not None:
        hl.store(dgates, [tile, part, slice(None)], (da * hl.load(scale, [part])).to(dgates.dtype))
    if sum_scale is not None:
        hl.store(sum_gates, [tile.id, part, slice(None)], da.sum(0))
        hl.store(sum_scale, [tile.id, part], product(da, mix, sums["rounded"]).sum(1).sum(0))


def logits_of(mixed, base, scale, base_shape, tile, n, how):
    """a of the comb columns, (tile, n, n), from their mixes, rounded as in `gate_of`."""
    return product(mixed, hl.load(scale, [2]), how) + read(base, base_shape, tile, n, n)


def sums_of(shape, n, how, pivoted):
    """How to add up a token's matrix, whose view is (T, *shape), with the same bits in every program."""
    return fixed_summation(n, n, how, shape == (n, 1, 1, 1, n), pivoted)


def hc_split_sinkhorn_forward(
    gates: torch.Tensor,
    logits: torch.Tensor,
    scale: torch.Tensor,
    base_gates: torch.Tensor,
    base_logits: torch.Tensor,
    pre: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    squares: torch.Tensor | None,
    mixed_gates: torch.Tensor | None,
    mixed_logits: torch.Tensor | None,
    norms: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write pre (T, n), post (T, n) and comb (T, n, n) or (T, n n).

    gates are all mixes, (T, n + 2, n), since Helion chooses 64-bit indices by the size of a tensor.
    base_gates is (n + 2, n).  With squares (splits T,), gates and logits are partial sums with splits T rows:
    the first `first` splits are read together, and then `together` at a time.  The mixes that they add up to
    are then written too, to two rows of mixed_gates (T, n + 2, n) and to mixed_logits (T, n n) or (T, n, n),
    and so are norms (T, 2).
    """
    (
        n, n_iters, eps, deepseek, post_mult, pre_eps, post_eps, transposed, splits, first,
        together, tokens_first, size, norm_eps, eps_outside, how, paired, pivoted,
    ) = facts  # fmt: skip
    batch = pre.size(0)
    shape, base_shape = hl.specialize((logits.shape[1:], base_logits.shape[1:]))
    hl.specialize((gates.shape[1:], gates.stride(), logits.stride(), base_logits.stride(), base_gates.shape))
    hl.specialize((pre.shape[1:], comb.shape[1:], comb.stride()))
    if mixed_logits is not None:
        # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
        _fixed = hl.specialize((mixed_logits.shape[1:], mixed_logits.stride()))
        hl.specialize((mixed_gates.shape[1:], mixed_gates.stride(), norms.shape[1:], norms.stride()))
    sums = sums_of(shape, n, how, pivoted)
    steps = n_iters - 1 if deepseek else n_iters
    for tile in hl.tile(batch):
        if squares is None:
            mix_pre = gate_mixes(gates, tile, 0)
            mix_post = gate_mixes(gates, tile, 1)
            mixed = read(logits, shape, tile, n, n)
        else:
            tokens = None if tokens_first else batch
            total, mix_pre, mix_post, mixed = with_splits(
                (), 0, first, splits, tokens, squares, gates, logits, shape, tile, n
            )
            if splits > first:
                for step in range((splits - first) // together):
                    total, mix_pre, mix_post, mixed = with_splits(
                        (total, mix_pre, mix_post, mixed), first + step * together, together, splits,
                        tokens, squares, gates, logits, shape, tile, n,
                    )  # fmt: skip
            r, k = norm_of(total, size, norm_eps, eps_outside, how)
            mix_pre = mix_pre * r.unsqueeze(1)
            mix_post = mix_post * r.unsqueeze(1)
            mixed = mixed * r.unsqueeze(1).unsqueeze(2)
            norms[tile, 0] = r
            norms[tile, 1] = k
            mixed_gates[tile, 0, :] = mix_pre
            mixed_gates[tile, 1, :] = mix_post
            if mixed_logits.dim() == 2:
                mixed_logits[tile, :] = mixed.reshape(tile.block_size, n * n)
            else:
                mixed_logits[tile, :, :] = mixed
        sigmoid, _other = sigmoids(gate_of(mix_pre, base_gates, scale, 0, how), how)
        pre[tile, :] = (sigmoid + pre_eps).to(pre.dtype)
        sigmoid, _other = sigmoids(gate_of(mix_post, base_gates, scale, 1, how), how)
        post[tile, :] = (post_mult * sigmoid + post_eps).to(post.dtype)
        x32 = logits_of(mixed, base_logits, scale, base_shape, tile, n, how)
        a, p, q = start(x32, n, n, eps, deepseek, 1, how)
        if pivoted:
            a, p, q, _c, _r = pivot(a, p, q, n, n, 1, how, sums)
        if steps > 0:
            for _step in range(steps):
                p, q = iterate(a, p, q, n, n, eps, 1, how, paired, sums)
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
    dgates: torch.Tensor | None,
    dlogits: torch.Tensor | None,
    sum_gates: torch.Tensor | None,
    sum_logits: torch.Tensor | None,
    sum_scale: torch.Tensor | None,
    facts: hl.constexpr,
):
    """Write dmixes: two rows of dgates (T, n + 2, n), and dlogits (T, n n) or (T, n, n).

    `head` segments of `length` iterations are replayed with their scaling vectors in registers, as in
    `sinkhorn_backward`.  The sums of da and of da * mixes over tokens have a row for each tile: sum_gates
    (tiles, 2, n), sum_logits (tiles, n, n) and sum_scale (tiles, 3).  dgates and dlogits may be None, or the
    three sums.
    """
    n, n_iters, eps, deepseek, post_mult, transposed, length, head, how, paired, pivoted, lean = facts
    batch = gates.size(0)
    shape, base_shape = hl.specialize((logits.shape[1:], base_logits.shape[1:]))
    hl.specialize((gates.shape[1:], gates.stride(), logits.stride(), base_logits.stride(), base_gates.shape))
    # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
    if dlogits is not None:
        _dmixes = hl.specialize((dgates.stride(), dlogits.shape[1:], dlogits.stride()))
    if sum_scale is not None:
        _shapes = hl.specialize((sum_gates.shape[1:], sum_logits.shape[1:]))
        _strides = hl.specialize((sum_gates.stride(), sum_logits.stride(), sum_scale.stride()))
    if dcomb is not None:
        dcomb_shape = hl.specialize(dcomb.shape[1:])
        hl.specialize(dcomb.stride())
    sums = sums_of(shape, n, how, pivoted)
    steps = n_iters - 1 if deepseek else n_iters
    rest = steps - head * length
    for tile in hl.tile(batch):
        # before anything is written, since no load moves up past a store.  The second read of the logits
        # after stores is a load again, which keeps no registers from the first read on (sm_90: 122
        # registers instead of 165)
        if dpre is not None:
            mix_pre = gate_mixes(gates, tile, 0)
            grad_pre = dpre[tile, :]
        if dpost is not None:
            mix_post = gate_mixes(gates, tile, 1)
            grad_post = dpost[tile, :]
        if dcomb is not None:
            x32 = logits_of(read(logits, shape, tile, n, n), base_logits, scale, base_shape, tile, n, how)
        if dpre is not None:
            da_pre = gate_gradient(mix_pre, grad_pre, base_gates, scale, 0, 1.0, how)
            store_gates(da_pre, mix_pre, scale, dgates, sum_gates, sum_scale, tile, 0, sums)
        if dpost is not None:
            da_post = gate_gradient(mix_post, grad_post, base_gates, scale, 1, post_mult, how)
            store_gates(da_post, mix_post, scale, dgates, sum_gates, sum_scale, tile, 1, sums)
        if dcomb is not None:
            a, p, q = start(x32, n, n, eps, deepseek, 1, how)
            if pivoted:
                a, p, q, _c, r = pivot(a, p, q, n, n, 1, how, sums)
            # + 0 for the same reason as in sinkhorn_backward (docs/dev/helion.md)
            p_starts = [p + 0.0] * (head + 1)
            q_starts = [q + 0.0] * (head + 1)
            if head > 0:
                for s in hl.static_range(head):
                    for _step in range(length):
                        p, q = iterate(a, p, q, n, n, eps, 1, how, paired, sums)
                    p_starts[s + 1] = p + 0.0
                    q_starts[s + 1] = q + 0.0
            dy = read(dcomb, dcomb_shape, tile, n, n)
            if transposed:
                dy = dy.permute(0, 2, 1)
            if may_overflow(eps):
                dy, power = of_order_one(dy, sums)
            da = last_iterations(
                a, dy, p_starts[head], q_starts[head], rest, n, n, eps, 1, how, paired, sums, lean
            )
            if head > 0:
                k = hl.full([], head - 1, dtype=torch.int32)
                for _segment in range(head):
                    da = replay_and_take_back(
                        a, da, pick(p_starts, head, k), pick(q_starts, head, k), length,
                        n, n, eps, 1, how, paired, sums, lean,
                    )  # fmt: skip
                    k = k - 1
            mixed = read(logits, shape, tile, n, n, eviction_policy="evict_first")
            if deepseek:
                v = reciprocals(q_starts[0], n, how, paired)
                if pivoted:
                    da = product(da * spread(p_starts[0], 1), spread(r, 2), sums["rounded"])
                    v = v * r
                # read again, since keeping the logits would take a matrix of registers in all segments
                x32 = logits_of(mixed, base_logits, scale, base_shape, tile, n, how)
                dz = softmax_gradient(x32, da, v, n, n, eps, 1, how, sums_of(shape, n, how, False))
            else:
                dz = da * a
            if may_overflow(eps):
                dz = dz * power
            if sum_scale is not None:
                sum_logits[tile.id, :, :] = dz.sum(0)
                hl.store(sum_scale, [tile.id, 2], product(dz, mixed, sums["rounded"]).sum(2).sum(1).sum(0))
            if dlogits is not None:
                dx = (dz * hl.load(scale, [2])).to(dlogits.dtype)
                if dlogits.dim() == 2:
                    dlogits[tile, :] = dx.reshape(tile.block_size, n * n)
                else:
                    dlogits[tile, :, :] = dx
