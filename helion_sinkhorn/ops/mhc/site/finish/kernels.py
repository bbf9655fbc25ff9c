"""The Helion kernel body that ends hc_site and hc_boundary for few tokens: one launch in place of three.

Two programs a token.  One adds up the partial sums of the projection and makes the coefficients, while the
other has a row of the result: it normalises y, or first collapses the streams by pre.  Every number is made
as by hc_mixes_reduce, hc_split_sinkhorn_forward and hc_pre_normed_forward, so that a token has the bits that
it has among many.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.mixes.kernels import in_order
from helion_sinkhorn.ops.mhc.pre.normed.kernels import collapsed, factor_of, streams_of
from helion_sinkhorn.ops.mhc.pre.quantized.kernels import round_tile, wait
from helion_sinkhorn.ops.mhc.split.kernels import gate_of, logits_of, sigmoids, sums_of
from helion_sinkhorn.ops.sinkhorn.iteration import iterate, pivot, reciprocals, spread, start
from helion_sinkhorn.ops.sinkhorn.loads import read


def root_mean_square(square, size, norm_eps, eps_outside):
    """(r, k) of sums of squares as hc_mixes_reduce has them."""
    mean = square / size
    if eps_outside:
        root = torch.sqrt(mean)
        r = 1.0 / (root + norm_eps)
        return r, torch.where(root > 0, -r / (size * root), 0.0)
    r = 1.0 / torch.sqrt(mean + norm_eps)
    return r, -r * r / size


def hc_boundary_finish(
    partials: torch.Tensor,
    squares: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    gates: torch.Tensor,
    logits: torch.Tensor,
    scale: torch.Tensor,
    base_gates: torch.Tensor,
    base_logits: torch.Tensor,
    pre: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    of_pre: torch.Tensor | None,
    x: torch.Tensor | None,
    y: torch.Tensor,
    weight: torch.Tensor,
    parts: torch.Tensor | None,
    values: torch.Tensor | None,
    scales: torch.Tensor | None,
    neighbours: int,
    facts: hl.constexpr,
):
    """mixes (T, M), norms (T, 2), pre (T, n), post (T, n), comb and u (T, C) over y.

    They are made of partials (T, splits, M) and squares (T, splits).  gates (T, n + 2, n) and logits are
    views of mixes as hc_split_sinkhorn_forward takes them.  u is the norm of y where x is None, or of the
    collapse of the streams x (T, n, C) by pre; then of_pre (T, splits, n) is a view of partials.  values and
    scales are made of parts, a view of u, as by hc_pre_normed_forward.

    All `slots` threads make the same coefficients of a token: a thread that holds a whole matrix adds up in
    the order of hc_split_sinkhorn_forward.
    """
    (
        splits, size, norm_eps, eps_outside, n, n_iters, eps, deepseek, post_mult, pre_eps, post_eps,
        transposed, slots, columns, y_eps, how, paired, pivoted, form,
    ) = facts  # fmt: skip
    tokens = pre.size(0)
    shape, base_shape = hl.specialize((logits.shape[1:], base_logits.shape[1:]))
    hl.specialize((partials.shape[1:], partials.stride(), squares.stride(), mixes.shape[1:]))
    hl.specialize((gates.shape[1:], gates.stride(), logits.stride(), base_logits.stride(), base_gates.shape))
    hl.specialize((pre.shape[1:], comb.shape[1:], comb.stride(), y.size(1), y.stride(), weight.size(0)))
    # assigned: alone under an `if` it would leave the block empty
    if x is not None:
        _fixed = hl.specialize((x.size(2), x.stride(), of_pre.shape[1:], of_pre.stride()))
    if values is not None:
        _parts = hl.specialize((parts.size(1), parts.stride(), values.stride()))
    sums = sums_of(shape, n, how, pivoted)
    steps = n_iters - 1 if deepseek else n_iters
    for t in hl.tile(tokens, block_size=1):
        total, square = in_order(partials, squares, t, splits)
        r, k = root_mean_square(square, size, norm_eps, eps_outside)
        mixes[t, :] = total * r.unsqueeze(1)
        norms[t, 0] = r
        norms[t, 1] = k
        wait(how)
        for slot in hl.tile(slots, block_size=slots):
            rows = t.begin + slot.index * 0
            if x is None:
                mix = hl.load(gates, [rows, 0, slice(None)])
                sigmoid, _other = sigmoids(gate_of(mix, base_gates, scale, 0, how), how)
                hl.store(pre, [rows, slice(None)], (sigmoid + pre_eps).to(pre.dtype))
            mix = hl.load(gates, [rows, 1, slice(None)])
            sigmoid, _other = sigmoids(gate_of(mix, base_gates, scale, 1, how), how)
            made = (post_mult * sigmoid + post_eps).to(post.dtype)
            hl.store(post, [rows, slice(None)], made)
            mixed = read(logits, shape, slot, n, n, rows=rows)
            x32 = logits_of(mixed, base_logits, scale, base_shape, slot, n, how)
            a, p, q = start(x32, n, n, eps, deepseek, 1, how)
            if pivoted:
                a, p, q, _c, _r = pivot(a, p, q, n, n, 1, how, sums)
            if steps > 0:
                for _step in range(steps):
                    p, q = iterate(a, p, q, n, n, eps, 1, how, paired, sums)
            u = spread(reciprocals(p, n, how, paired), 1)
            found = (a * u * spread(reciprocals(q, n, how, paired), 2)).to(comb.dtype)
            if transposed:
                found = found.permute(0, 2, 1)
            if comb.dim() == 2:
                hl.store(comb, [rows, slice(None)], found.reshape(slots, n * n))
            else:
                hl.store(comb, [rows, slice(None), slice(None)], found)
    for t in hl.tile(tokens, block_size=1):
        if x is None:
            row = collapsed([hl.load(y, [t, slice(None)]).to(torch.float32)], None, t, y.dtype, how)
        else:
            of_gate, square = in_order(of_pre, squares, t, splits)
            r, _k = root_mean_square(square, size, norm_eps, eps_outside)
            mix = of_gate * r.unsqueeze(1)
            sigmoid, _other = sigmoids(gate_of(mix, base_gates, scale, 0, how), how)
            pre[t, :] = (sigmoid + pre_eps).to(pre.dtype)
            wait(how)
            row = collapsed(streams_of(x, t, n), pre, t, y.dtype, how)
        w = weight[:].to(torch.float32).unsqueeze(0)
        y[t, :] = (row * factor_of(row, y_eps, columns).unsqueeze(1) * w).to(y.dtype)
        if values is not None:
            # Helion takes no loop in a helper
            step, floor, of_groups = form
            wait(how)
            for tile in hl.tile(t.begin * of_groups[0], t.end * of_groups[0], block_size=step):
                round_tile(parts, values, scales, tile, floor, neighbours, of_groups)
