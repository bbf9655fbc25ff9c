"""The Helion kernel body of the gradients of gates, by products of states and of pairs without differences.

    h_t = D_t * h_(t-1) + k_t v_t',  o_t = scale h_t' q_t,  D_t[i, j] = exp(rows_t[i] + columns_t[j])

The gradient of rows_t sums, over j, the decayed state before step t times the gradient of the state after it.
Both are sums over steps, so their product is a sum over pairs: what step j < t added to the state and step i
>= t read, times the decay between them, which includes step t.  For SPAN steps, with h the state before them,
dh the gradient of the state after them, and D(j, i] the decay over steps j + 1 .. i:

    before and after:  D(0, C] * (h dh summed over columns)
    before, within:    scale q_i * D(0, i] * (h do_i), summed over i >= t
    within, after:     k_j * D(j, C] * (dh v_j), summed over j < t
    within:            scale q_i * k_j * D(j, i] (do_i . v_j), summed over j < t <= i

Pairs within the steps are computed level by level, as in chunked/kernels.py: with `half`, the highest bit in
which i and j differ, j is in the left half of a block and i in the right half.  The terms of row r with the
other half of its block are one product of matrices.  Every factor is a decay, at most 1 for gates at most 0:
exp(P w) of log decays w, with a matrix P of zeros and ones, so that the gradient of w is P' times the terms
with that factor.

The gradient of columns_t is computed in the same way from the transposed states, with q and do, and k and v,
exchanged.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.linear_attention.chunked.chunk import (
    decay_apart,
    owed,
    pieces_of,
    product_of_pieces,
    transposed,
)
from helion_sinkhorn.ops.linear_attention.levels import across_middle, exponent, near_middle, ones
from helion_sinkhorn.runtime.device_math import LOG2E


def rows_of(x, t, h, d, there):
    """Rows t and columns d of x[:, h, :], 0 where there is no such row or column."""
    return hl.load(x, [t, h, d], extra_mask=there.unsqueeze(1) & (d < x.size(2)).unsqueeze(0))


def columns_of(states, slot, h, r, d):
    """Rows r and columns d of a kept state, 0 outside."""
    inside = (r < states.size(2)).unsqueeze(1) & (d < states.size(3)).unsqueeze(0)
    return hl.load(states, [slot, h, r, d], extra_mask=inside)


def operand(x, fine):
    """x as a sum of tensors that a matrix unit takes: x itself, or one or two with 8 bits each."""
    if fine:
        return [x.to(torch.float32)]
    return [x] if x.dtype == torch.bfloat16 else pieces_of(x.to(torch.float32), 2)


def multiplied(x, y, fine, how, acc=None, turn_y=False):
    """x y (+ acc), or x y'."""
    ys = operand(y, fine)
    return product_of_pieces(operand(x, fine), list(map(transposed, ys)) if turn_y else ys, how, acc)


def decay_through(whole, rest, single):
    """The decay over all steps, a vector."""
    return torch.exp2(whole.sum(0) * LOG2E) if single else torch.exp2(whole.sum(0)) * torch.exp2(rest.sum(0))


def log_decays(x, gate, g, g_gamma, t, h, d, there, single):
    """`exponent` of one side of the state: its own gate, and the gates of whole states if given."""
    found = [] if gate is None else [rows_of(gate, t, h, d, there)]
    if g is not None:
        found.append(hl.load(g, [t, h], extra_mask=there).unsqueeze(1))
    if g_gamma is not None:
        found.append(hl.load(g_gamma, [h]))
    return exponent(found, there.unsqueeze(1) & (d < x.size(2)).unsqueeze(0), single)


def rows_at(table, slot, length, row, span, descending):
    """(token of each row, whether it exists) for the steps after the kept state in `slot`."""
    sign = -1 if descending else 1
    if table is not None:
        return hl.load(table, [slot, 0]) + sign * row, row < hl.load(table, [slot, 1])
    blocks = (length + span - 1) // span
    position = slot % blocks * span + row
    begin = slot // blocks * length
    return begin + (length - 1 - position if descending else position), position < length


def linear_attention_gates(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    g: torch.Tensor | None,
    g_gamma: torch.Tensor | None,
    gk: torch.Tensor | None,
    gv: torch.Tensor | None,
    dgk: torch.Tensor | None,
    states: torch.Tensor,
    dstates: torch.Tensor,
    dg: torch.Tensor | None,
    table: torch.Tensor | None,
    length: int,
    scale: float,
    facts: hl.constexpr,
):
    """Write dgk and its sums over the channels of a tile; a program takes `span` steps and a tile of Dk.
    q, k, gk (tokens, H, Dk), v, do, gv (tokens, H, Dv), g (tokens, H), g_gamma (H,); states and dstates
    (slots, H, Dk, Dv): before and after every `span` steps, as the walks keep them;
    dg (tiles, tokens, H) float32.
    table (slots, 2) has the first token and the number of rows of each slot, where sequences are packed.
    """
    span, descending, fine, single, width, tiles, blocks, how = facts
    slots, heads = states.size(0), states.size(1)
    for slot, h, tile in hl.grid([slots, heads, tiles]):
        position = hl.arange(span)
        t, there = rows_at(table, slot, length, position, span, descending)
        r = tile * width + hl.arange(width)
        i, j = position.unsqueeze(1), position.unsqueeze(0)
        upto, after = ones(j <= i), ones(j > i)
        whole, rest = log_decays(q, gk, g, g_gamma, t, h, r, there, single)
        dqs = hl.zeros([span, width], dtype=torch.float32)
        dks = hl.zeros([span, width], dtype=torch.float32)
        scores = hl.zeros([span, span], dtype=torch.float32)
        kept = hl.zeros([width], dtype=torch.float32)
        for block in hl.grid(blocks):
            d = block * width + hl.arange(width)
            v_c, do_c = rows_of(v, t, h, d, there), rows_of(do, t, h, d, there)
            state, dstate = columns_of(states, slot, h, r, d), columns_of(dstates, slot, h, r, d)
            if gv is None:
                scores = multiplied(do_c, v_c, fine, how, scores, turn_y=True)
                kept = kept + (state * dstate).sum(1)
                dqs = multiplied(do_c, state, fine, how, dqs, turn_y=True)
                dks = multiplied(v_c, dstate, fine, how, dks, turn_y=True)
            else:
                n, f = log_decays(v, gv, None, None, t, h, d, there, single)
                kept = kept + (state * decay_through(n, f, single).unsqueeze(0) * dstate).sum(1)
                x = do_c.to(torch.float32) * decay_apart(upto, n, f, single, fine, how)
                dqs = multiplied(x, state, fine, how, dqs, turn_y=True)
                y = v_c.to(torch.float32) * decay_apart(after, n, f, single, fine, how)
                dks = multiplied(y, dstate, fine, how, dks, turn_y=True)
        q32 = rows_of(q, t, h, r, there).to(torch.float32) * scale
        k32 = rows_of(k, t, h, r, there).to(torch.float32)
        kept = kept * decay_through(whole, rest, single)
        dqs = q32 * dqs * decay_apart(upto, whole, rest, single, fine, how)
        dks = k32 * dks * decay_apart(after, whole, rest, single, fine, how)
        dw = owed(upto, dqs, fine, how, kept.unsqueeze(0).expand(span, width))
        dw = owed(after, dks, fine, how, dw)
        scores = torch.where(i > j, scores, transposed(scores))
        half = hl.full([], 1, dtype=torch.int32)
        for _level in range(span.bit_length() - 1):
            right = (i & half) != 0
            near = ones(near_middle(i, j, half))
            if gv is not None:
                scores = hl.zeros([span, span], dtype=torch.float32)
                for block in hl.grid(blocks):
                    d = block * width + hl.arange(width)
                    n, f = log_decays(v, gv, None, None, t, h, d, there, single)
                    both = torch.where(right, rows_of(do, t, h, d, there), rows_of(v, t, h, d, there))
                    both = both.to(torch.float32) * decay_apart(near, n, f, single, fine, how)
                    scores = multiplied(both, both, fine, how, scores, turn_y=True)
            x = torch.where(right, q32, k32) * decay_apart(near, whole, rest, single, fine, how)
            pairs = torch.where(across_middle(i, j, half), scores, 0.0)
            dw = owed(near, x * multiplied(pairs, x, fine, how), fine, how, dw)
            half = half * 2
        inside = there.unsqueeze(1) & (r < q.size(2)).unsqueeze(0)
        if dgk is not None:
            hl.store(dgk, [t, h, r], dw.to(dgk.dtype), extra_mask=inside)
        if dg is not None:
            hl.store(dg, [tile, t, h], dw.sum(1), extra_mask=there)
