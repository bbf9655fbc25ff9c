"""The Helion kernel bodies of chunked linear attention: matrix units in a chunk, a recurrence between chunks.

    h_t = diag(exp(w_t)) h_(t-1) + k_t v_t',  o_t = scale h_t' q_t,  w_t = gk_t + g_t + g_gamma

Steps are taken in chunks of C.  With the rows of a chunk as matrices, h the state before it, and a decay over
some steps, which is exp of the sum of their gates,

    o = Q h + A v        Q_i = scale q_i * decay over the steps up to i
    h <- D h + K' v      K_j = k_j * decay over the steps after j,  D = decay over the whole chunk
                         A_ij = scale q_i . (k_j * decay over j + 1 .. i), 0 for j > i

Gradients come from the same recurrence backwards, with queries and keys exchanged, A transposed and do for v,

    dv = K dh + A' do,  dh <- D dh + Q' do        dh the gradient of the state after a chunk

and then from h before each chunk and dh after it (docs/dev/linear_attention.md).

A_ij cannot be a product of a factor of i and one of j for all gates, since exp(-sum of gates) overflows.
Relative to the middle of the chunk such factors stay in range while neither half decays below `least`; then A
is one product of matrices.  Otherwise pairs are computed level by level.  `half`, the highest bit in which i
and j differ, gives a block of 2 `half` steps with j in its left half and i in its right half.  Their decay is
the decay from j to the middle times that from the middle to i, neither above 1, so that a level is one
product of matrices too.  Sums of gates are products with matrices of zeros and ones, without differences of
large sums.

Layouts: q, k, gk (B, T, H, Dk), v, o (B, T, H, Dv) as the caller has them; Q and K (B, H, N, C, width),
A (B, H, N, C, C), D (B, H, N, width), states (B, H, N, width, Dv) with N = ceil(T / C) and width = Dk padded.
Steps beyond T are loaded as zeros, since a gate and a key of 0 change nothing.  With reverse=True the last
step comes first: `order` numbers rows from the other end, and everything else uses those numbers.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.linear_attention.chunked.chunk import (
    across_middle,
    columns_inside,
    decay_over,
    fine_product,
    in_right,
    load,
    log_decay,
    order,
    product,
    save,
    saved,
    store,
    sums_of_halves,
    towards_middle,
    transposed,
)
from helion_sinkhorn.runtime.device_math import LOG2E, reciprocal


def linear_attention_chunk_scores(
    q: torch.Tensor,
    k: torch.Tensor,
    g: torch.Tensor | None,
    g_gamma: torch.Tensor | None,
    gk: torch.Tensor | None,
    qs: torch.Tensor,
    ks: torch.Tensor,
    decay: torch.Tensor,
    a: torch.Tensor,
    scale: float,
    facts: hl.constexpr,
):
    """Write Q, K, D and A of every chunk; a program takes one chunk."""
    chunk, width, reverse, pieces, least, how = facts
    batch, heads, chunks = decay.size(0), decay.size(1), decay.size(2)
    for b, h, c in hl.grid([batch, heads, chunks]):
        row = hl.arange(chunk)
        t = c * chunk + row
        d = hl.arange(width)
        position = order(chunk, reverse)
        i, j = position.unsqueeze(1), position.unsqueeze(0)
        w = log_decay(q, g, g_gamma, gk, b, t, h, d)
        q_c, k_c = load(q, b, t, h, d), load(k, b, t, h, d)
        left, right = sums_of_halves(w, position, chunk)
        hl.store(decay, [b, h, c, d], torch.exp2((left + right) * LOG2E).squeeze(0))
        near = decay_over(towards_middle(position, chunk // 2), w, pieces, how)
        if near.amin(1).amin(0) >= least:
            # relative to the middle of the chunk, the factors of a query and of a key are inverse
            far = reciprocal(near, how)
            is_right = in_right(position, chunk // 2)
            x = q_c.to(torch.float32) * scale * torch.where(is_right, near, far)
            save(qs, b, h, c, row, d, x * torch.exp2(left * LOG2E))
            y = k_c.to(torch.float32) * torch.where(is_right, far, near)
            save(ks, b, h, c, row, d, y * torch.exp2(right * LOG2E))
            pairs = fine_product(x, y, qs.dtype, how, turn_y=True)
            save(a, b, h, c, row, hl.arange(chunk), torch.where(i >= j, pairs, 0.0))
        else:
            save(qs, b, h, c, row, d, q_c.to(torch.float32) * scale * decay_over(j <= i, w, pieces, how))
            save(ks, b, h, c, row, d, k_c.to(torch.float32) * decay_over(j > i, w, pieces, how))
            diagonal = (q_c.to(torch.float32) * scale * k_c.to(torch.float32)).sum(1).unsqueeze(1)
            scores = torch.where(i == j, diagonal, 0.0)
            half = hl.full([], 1, dtype=torch.int32)
            for _level in range(chunk.bit_length() - 1):
                # rows of right halves are queries and rows of left halves keys, in one product.  They are
                # read again: registers that only levels need would slow every chunk (168 us instead of 120)
                q32 = load(q, b, t, h, d).to(torch.float32) * scale
                both = torch.where(in_right(position, half), q32, load(k, b, t, h, d).to(torch.float32))
                both = both * decay_over(towards_middle(position, half), w, pieces, how)
                pairs = fine_product(both, both, qs.dtype, how, turn_y=True)
                scores = torch.where(across_middle(position, half) & (i > j), pairs, scores)
                half = half * 2
            save(a, b, h, c, row, hl.arange(chunk), scores)


def linear_attention_chunk_walk(
    y: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    x: torch.Tensor | None,
    a: torch.Tensor | None,
    initial: torch.Tensor | None,
    o: torch.Tensor | None,
    states: torch.Tensor | None,
    final: torch.Tensor,
    facts: hl.constexpr,
):
    """Compute s <- D s + y' v from chunk to chunk, and o = x s + A v if o is given.

    A program takes some columns.

    x and y are (B, H, N, C, width), v and o (B, T, H, Dv), initial (B, H, Dk, Dv) or None for zeros; states
    (B, H, N, width, Dv) receives s before every chunk, final (B, H, Dk, Dv) s after the last, in float32.
    """
    chunk, width, backwards, columns, blocks, how = facts
    batch, heads, chunks = decay.size(0), decay.size(1), decay.size(2)
    for b, h, block in hl.grid([batch, heads, blocks]):
        r = hl.arange(width)
        d = block * columns + hl.arange(columns)
        exists = (r < final.size(2)).unsqueeze(1) & (d < final.size(3)).unsqueeze(0)
        if initial is None:
            s = hl.zeros([width, columns], dtype=torch.float32)
        else:
            s = hl.load(initial, [b, h, r, d], extra_mask=exists).to(torch.float32)
        for step in hl.grid(chunks):
            c = chunks - 1 - step if backwards else step
            row = hl.arange(chunk)
            t = c * chunk + row
            v_c = load(v, b, t, h, d).to(y.dtype)
            operand = s.to(y.dtype)
            if states is not None:
                hl.store(states, [b, h, c, r, d], operand, extra_mask=columns_inside(r, d, states))
            if o is not None:
                out = product(saved(x, b, h, c, row, r), operand, how)
                store(o, b, t, h, d, product(saved(a, b, h, c, row, hl.arange(chunk)), v_c, how, out))
            s = s * hl.load(decay, [b, h, c, r]).unsqueeze(1)
            s = product(transposed(saved(y, b, h, c, row, r)), v_c, how, s)
        hl.store(final, [b, h, r, d], s, extra_mask=exists)
