"""Kernel helpers of a chunk: products, decays and the loads and stores of its tiles."""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.linear_attention.levels import exponent
from helion_sinkhorn.runtime.device_math import LOG2E, moved, multiply_add

# exp of this and of any smaller gate is 0 in float32; -inf times 0 would be NaN
LEAST_GATE = -110.0


def product(x, y, how, acc=None):
    """x y (+ acc), summed in float32; a CPU ("full") cannot multiply 16-bit matrices into float32."""
    if how != "full":
        return hl.dot(x, y, acc=acc) if acc is not None else hl.dot(x, y, out_dtype=torch.float32)
    out = torch.matmul(x.to(torch.float32), y.to(torch.float32))
    return out if acc is None else acc + out


def transposed(x):
    """x'."""
    return x.permute(1, 0)


def pieces_of(x, count):
    """x as a sum of `count` tensors with 8 bits each; three hold a float32."""
    found = []
    for _piece in range(count):
        found.append(x.to(torch.bfloat16))
        x = x - found[-1].to(torch.float32)
    return found


def product_of_pieces(xs, ys, how, acc=None):
    """x y (+ acc) for x and y as sums of pieces, without the products of the smallest pieces."""
    most = max(len(xs), len(ys))
    for i, x in enumerate(xs):
        for y in ys[: most - i]:
            acc = product(x, y, how, acc)
    return acc


def fine_product(x, y, dtype, how, acc=None, turn_x=False, turn_y=False):
    """x y (+ acc) of float32 matrices, or of x' or y', with an error of at most 2^-16, in `dtype`."""
    xs, ys = ([m] if dtype == torch.float32 else pieces_of(m, 2) for m in (x, y))
    xs, ys = map(transposed, xs) if turn_x else xs, map(transposed, ys) if turn_y else ys
    return product_of_pieces(list(xs), list(ys), how, acc)


def summed(picks, x, pieces, how):
    """The product picks x, for picks of zeros and ones and x as a sum of `pieces` with 8 bits each."""
    return product_of_pieces([torch.where(picks, 1.0, 0.0).to(torch.bfloat16)], pieces_of(x, pieces), how)


def decay_over(picks, w, pieces, how):
    """exp of the sum of the gates w that each row of `picks` selects, (C, width)."""
    return torch.exp2(summed(picks, w, pieces, how) * LOG2E)


def decay_apart(picks, whole, rest, single, fine, how):
    """The decay over the steps that each row of `picks`, of zeros and ones, selects."""
    if single:
        return torch.exp2(product_of_pieces([picks], pieces_of(whole, 1), how) * LOG2E)
    n = product_of_pieces([picks], pieces_of(whole, 1), how)
    if fine:
        return torch.exp2(n) * torch.exp2(added(*summed_apart(picks, rest, how), how))
    return torch.exp2(n) * torch.exp2(product_of_pieces([picks], pieces_of(rest, 2), how))


def summed_apart(picks, x, how):
    """The product picks x as (sum of the highest pieces, with 8 bits; sum of the other pieces).

    A matrix unit truncates its running sum after every few rows.  The sum of only the highest pieces is
    mostly exact, and the truncation errors of the others are too small to matter.
    """
    high, *low = pieces_of(x, 3)
    small = product_of_pieces([picks], low[::-1], how)
    return product(picks, high, how), small


def added(total, small, how):
    """total + small, hidden from Triton, which would add a visible sum within the matrix unit."""
    if how == "gcn":
        return multiply_add(total, torch.ones_like(total), small, how)
    return moved(total, how) + small


def gathered(picks, x, pieces, how, acc):
    """acc + picks' x: the gradients of gates, where x has decays over the steps of its rows as factors."""
    return product_of_pieces([transposed(picks)], pieces_of(x, pieces), how, acc)


def owed(picks, x, fine, how, acc):
    """`gathered`; with `fine` in sums that hardly round."""
    if not fine:
        return gathered(picks, x, 2, how, acc)
    return acc + added(*summed_apart(transposed(picks), x, how), how)


def exponents(q, g, g_gamma, gk, b, t, h, d, single):
    """`exponent` of the gates at steps t and channels d."""
    found = [] if gk is None else [load(gk, b, t, h, d)]
    if g is not None:
        found.append(hl.load(g, [b, t, h], extra_mask=t < g.size(1)).unsqueeze(1))
    if g_gamma is not None:
        found.append(hl.load(g_gamma, [h]))
    return exponent(found, inside(t, d, q), single)


def order(chunk, reverse):
    """The position in time of every row of a chunk."""
    rows = hl.arange(chunk)
    return chunk - 1 - rows if reverse else rows


def inside(t, d, x):
    """Whether rows t and columns d exist in x (B, T, H, D)."""
    return (t < x.size(1)).unsqueeze(1) & (d < x.size(3)).unsqueeze(0)


def load(x, b, t, h, d):
    """Rows t and columns d of x[b, :, h, :], 0 outside."""
    return hl.load(x, [b, t, h, d], extra_mask=inside(t, d, x))


def store(x, b, t, h, d, value):
    hl.store(x, [b, t, h, d], value.to(x.dtype), extra_mask=inside(t, d, x))


def columns_inside(r, d, states):
    """Whether a state has the columns d."""
    return (r >= 0).unsqueeze(1) & (d < states.size(4)).unsqueeze(0)


def saved(x, b, h, c, i, j):
    """Rows i and columns j of x[b, h, c], all of which exist."""
    return hl.load(x, [b, h, c, i, j])


def save(x, b, h, c, i, j, value):
    hl.store(x, [b, h, c, i, j], value.to(x.dtype))


def state_at(states, b, h, c, r, d):
    """Columns d of a state, 0 beyond Dv."""
    return hl.load(states, [b, h, c, r, d], extra_mask=columns_inside(r, d, states))


def log_decay(q, g, g_gamma, gk, b, t, h, d):
    """The sum of the gates at steps t and channels d, fp32, 0 outside."""
    mask = inside(t, d, q)
    w = torch.where(mask, 0.0, 0.0)
    if gk is not None:
        w = w + load(gk, b, t, h, d).to(torch.float32)
    if g is not None:
        w = w + hl.load(g, [b, t, h], extra_mask=t < g.size(1)).to(torch.float32).unsqueeze(1)
    if g_gamma is not None:
        w = w + hl.load(g_gamma, [h]).to(torch.float32)
    return torch.where(mask, torch.clamp(w, min=LEAST_GATE), 0.0)


def between(position, first, last):
    """Picks whose row i selects the steps from first_i up to before last_i."""
    j = position.unsqueeze(0)
    return (first.unsqueeze(1) <= j) & (j < last.unsqueeze(1))


def in_right(position, half):
    """Whether a row is in the right half of its block of 2 `half` rows, (C, 1)."""
    return ((position & half) != 0).unsqueeze(1)


def towards_middle(position, half):
    """Picks whose row i selects the steps from i to the middle of its block; i itself in the right half."""
    start = position & -half
    right = (position & half) != 0
    first, last = torch.where(right, start, position + 1), torch.where(right, position + 1, start + half)
    return between(position, first, last)


def across_middle(position, half):
    """Picks whose row i selects the steps of the other half of its block."""
    other = (position & -half) ^ half
    return between(position, other, other + half)


def sums_of_halves(w, position, chunk):
    """The gates of the left and of the right half of a chunk, each (1, width)."""
    right = in_right(position, chunk // 2)
    left_sum, right_sum = torch.where(right, 0.0, w).sum(0), torch.where(right, w, 0.0).sum(0)
    return left_sum.unsqueeze(0), right_sum.unsqueeze(0)
