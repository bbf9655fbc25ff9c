"""linear_attention_chunk_gradients: gradients of a chunk from the states at its ends."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.linear_attention.chunked.chunk import (
    across_middle,
    decay_apart,
    decay_over,
    exponents,
    fine_product,
    in_right,
    load,
    log_decay,
    order,
    owed,
    product,
    state_at,
    store,
    summed,
    sums_of_halves,
    towards_middle,
    transposed,
)
from helion_sinkhorn.ops.linear_attention.levels import near_middle, ones
from helion_sinkhorn.runtime.device_math import LOG2E, reciprocal


def linear_attention_chunk_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    g_gamma: torch.Tensor | None,
    gk: torch.Tensor | None,
    do: torch.Tensor,
    decay: torch.Tensor,
    states: torch.Tensor,
    dstates: torch.Tensor,
    dq: torch.Tensor | None,
    dk: torch.Tensor | None,
    dg: torch.Tensor | None,
    dgk: torch.Tensor | None,
    scale: float,
    facts: hl.constexpr,
):
    """Write dq, dk and the gradients of gates from h before a chunk and its adjoint after it.

    A program takes one chunk.

    dg is (B, T, H) in fp32, for g and g_gamma.
    """
    chunk, width, reverse, pieces, least, least_gate, columns, blocks, how = facts
    batch, heads, chunks = decay.size(0), decay.size(1), decay.size(2)
    for b, h, c in hl.grid([batch, heads, chunks]):
        t = c * chunk + hl.arange(chunk)
        r = hl.arange(width)
        position = order(chunk, reverse)
        i, j = position.unsqueeze(1), position.unsqueeze(0)
        dqs = hl.zeros([chunk, width], dtype=torch.float32)
        dks = hl.zeros([chunk, width], dtype=torch.float32)
        da = hl.zeros([chunk, chunk], dtype=torch.float32)
        kept = hl.zeros([width], dtype=torch.float32)
        for block in hl.grid(blocks):
            d = block * columns + hl.arange(columns)
            v_c = load(v, b, t, h, d).to(states.dtype)
            do_c = load(do, b, t, h, d).to(states.dtype)
            state, dstate = state_at(states, b, h, c, r, d), state_at(dstates, b, h, c, r, d)
            da = product(do_c, transposed(v_c), how, da)
            dqs = product(do_c, transposed(state), how, dqs)
            dks = product(v_c, transposed(dstate), how, dks)
            kept = kept + (state.to(torch.float32) * dstate.to(torch.float32)).sum(1)
        w = log_decay(q, g, g_gamma, gk, b, t, h, r)
        near = decay_over(towards_middle(position, chunk // 2), w, pieces, how)
        fine = states.dtype != torch.bfloat16
        # the state before the chunk, decayed over it, times its gradient: every gate of the chunk scales it
        through = kept * hl.load(decay, [b, h, c, r])
        if (near.amin(1).amin(0) >= least) & (w.amin(1).amin(0) >= least_gate):
            far = reciprocal(near, how)
            is_right = in_right(position, chunk // 2)
            up, down = torch.where(is_right, near, far), torch.where(is_right, far, near)
            left, right = sums_of_halves(w, position, chunk)
            pairs = torch.where(i >= j, da, 0.0)
            x = load(q, b, t, h, r).to(torch.float32) * scale * up
            dqs = dqs * torch.exp2(left * LOG2E)
            # the gradients start from those of the first step, which are 0 where no state was before
            first = through + (x * dqs).sum(0)
            dks = fine_product(pairs, x, states.dtype, how, dks * torch.exp2(right * LOG2E), turn_x=True)
            if dk is not None:
                store(dk, b, t, h, r, dks * down)
            y = load(k, b, t, h, r).to(torch.float32) * down
            difference = y * dks
            dqs = fine_product(pairs, y, states.dtype, how, dqs)
            if dq is not None:
                store(dq, b, t, h, r, dqs * up * scale)
            # q is read again, which keeps one tile less in registers
            difference = difference - load(q, b, t, h, r).to(torch.float32) * scale * up * dqs
            if fine:
                dw = owed(ones(j > i), difference, fine, how, first.unsqueeze(0).expand(chunk, width))
            else:
                dw = summed(j < i, difference, 2, how) + first.unsqueeze(0)
        else:
            whole, rest = exponents(q, g, g_gamma, gk, b, t, h, r, pieces == 1)
            k32 = load(k, b, t, h, r).to(torch.float32)
            q32 = load(q, b, t, h, r).to(torch.float32) * scale
            diagonal = torch.where(i == j, da, 0.0).sum(1).unsqueeze(1)
            dqs = dqs * decay_apart(ones(j <= i), whole, rest, pieces == 1, fine, how)
            dks = dks * decay_apart(ones(j > i), whole, rest, pieces == 1, fine, how)
            # the gradient of the gates in a decay exp(P w) is P' times the terms that have it as a factor
            if fine:
                dw = owed(ones(j <= i), q32 * dqs, fine, how, through.unsqueeze(0).expand(chunk, width))
                dw = owed(ones(j > i), k32 * dks, fine, how, dw)
            else:
                dw = through.unsqueeze(0) + summed(j >= i, q32 * dqs, 2, how)
                dw = dw + summed(j < i, k32 * dks, 2, how)
            dqs = dqs + diagonal * k32
            dks = dks + diagonal * q32
            both = torch.where(i > j, da, transposed(da))
            half = hl.full([], 1, dtype=torch.int32)
            for _level in range(chunk.bit_length() - 1):
                is_right = in_right(position, half)
                picks = ones(near_middle(i, j, half))
                near = decay_apart(picks, whole, rest, pieces == 1, fine, how)
                x = torch.where(is_right, q32, k32)
                pairs = torch.where(across_middle(position, half), both, 0.0)
                # rows of right halves are gradients of queries, rows of left halves of keys
                dx = fine_product(pairs, x * near, states.dtype, how) * near
                dqs = dqs + torch.where(is_right, dx, 0.0)
                dks = dks + torch.where(is_right, 0.0, dx)
                dw = owed(picks, x * dx, fine, how, dw)
                half = half * 2
            if dq is not None:
                store(dq, b, t, h, r, dqs * scale)
            if dk is not None:
                store(dk, b, t, h, r, dks)
        if dgk is not None:
            store(dgk, b, t, h, r, dw)
        if dg is not None:
            hl.store(dg, [b, t, h], dw.sum(1), extra_mask=t < dg.size(1))
