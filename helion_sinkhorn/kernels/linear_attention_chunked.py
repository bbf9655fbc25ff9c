"""The Helion kernel bodies of chunked linear attention: matrix units in a chunk, a recurrence between chunks.

    h_t = diag(exp(w_t)) h_(t-1) + k_t v_t',  o_t = scale h_t' q_t,  w_t = gk_t + g_t + g_gamma

Steps go in chunks of C.  With the rows of a chunk together, h the state before it, and the decay over some
steps, which is exp of the sum of their gates,

    o = Q h + A v        Q_i = scale q_i * decay over the steps up to i
    h <- D h + K' v      K_j = k_j * decay over the steps after j,  D = decay over the whole chunk
                         A_ij = scale q_i . (k_j * decay over j + 1 .. i), 0 for j > i

Gradients are the same walk backwards, with queries and keys exchanged, A transposed and do for v,

    dv = K dh + A' do,  dh <- D dh + Q' do        dh the gradient of the state after a chunk

and then what each chunk makes of h before and dh after it (docs/linear_attention_chunked.md).

A_ij is no product of factors of i and of j that stay in the range of a float whatever the gates: exp(-sum of
gates) overflows.  Relative to the middle of the chunk they do while neither half decays below `least`: one
product of matrices.  Otherwise pairs go level by level.  `half`, the highest bit in which i and j differ,
names a block of 2 `half` steps with j in its left half and i in its right one.  The decay is that from j to
the middle times that from the middle to i, neither above 1, and a level is one product of matrices too.  Sums
of gates are products with matrices of zeros and ones: no difference of large sums is taken.

Layouts: q, k, gk (B, T, H, Dk), v, o (B, T, H, Dv) as the caller has them; Q and K (B, H, N, C, width),
A (B, H, N, C, C), D (B, H, N, width), states (B, H, N, width, Dv) with N = ceil(T / C) and width = Dk padded.
Steps beyond T are loaded as zeros, and a gate and a key of 0 change nothing.  With reverse=True the last step
is the first: `order` numbers rows from the other end, and all that follows goes by those numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import helion.language as hl
import torch

from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.kernels.iteration import LOG2E, reciprocal
from helion_sinkhorn.kernels.linear_attention_levels import exponent, near_middle, ones

# exp of it is 0 in float32, as of all below; 0 times -inf would be NaN
LEAST_GATE = -110.0


@dataclass(frozen=True)
class ChunkCall(Keyed):
    """What the configs of the chunked kernels are chosen for: the operator's dtype, sizes and gates."""

    dtype: str
    dk: int
    dv: int
    gates: str
    """Names with spaces between: "g g_gamma gk" at most."""

    @property
    def chunk(self) -> int:
        """Steps of a chunk."""
        return 64

    @property
    def width(self) -> int:
        """Columns that a tile of Dk has."""
        return extent(self.dk)

    @property
    def operand(self) -> str:
        """Dtype of what is multiplied: a state outgrows float16, which therefore counts as float32."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"

    @property
    def least(self) -> float:
        """Half a chunk that decays by less goes level by level.

        Factors are this and its inverse at most: inside the range of float32 with 2^-56.  The error of an
        exponent grows with it, so that float32 stays at 2^-4.
        """
        return 2.0**-56 if self.operand == "bfloat16" else 2.0**-4

    @property
    def least_gate(self) -> float:
        """A chunk with a stronger one goes level by level for its gradients.

        Relative to the middle those of gates are differences of sums over the chunk, and lose what a gate
        leaves of them: at 2^-4, less than bfloat16 results are rounded by.  float32 is to lose nothing.
        """
        return math.log(2.0**-4) if self.operand == "bfloat16" else 0.0

    def __str__(self) -> str:
        return f"{self.dtype} {self.dk}x{self.dv} {self.gates or 'no gate'}"


def extent(size):
    """An axis of Dk or Dv, padded: ptxas 12.8 gets products of narrower tiles wrong (docs/helion.md)."""
    return max(64, 1 << (size - 1).bit_length())


def product(x, y, how, acc=None):
    """x y (+ acc), summed in fp32; the CPU ("full") multiplies no 16-bit matrices into fp32."""
    if how != "full":
        return hl.dot(x, y, acc=acc) if acc is not None else hl.dot(x, y, out_dtype=torch.float32)
    out = torch.matmul(x.to(torch.float32), y.to(torch.float32))
    return out if acc is None else acc + out


def transposed(x):
    """x'."""
    return x.permute(1, 0)


def pieces_of(x, count):
    """x as a sum of `count` tensors of 8 bits; three hold a float32."""
    found = []
    for _piece in range(count):
        found.append(x.to(torch.bfloat16))
        x = x - found[-1].to(torch.float32)
    return found


def product_of_pieces(xs, ys, how, acc=None):
    """x y (+ acc) of sums of pieces, without the products of the smallest ones."""
    most = max(len(xs), len(ys))
    for i, x in enumerate(xs):
        for y in ys[: most - i]:
            acc = product(x, y, how, acc)
    return acc


def fine_product(x, y, dtype, how, acc=None, turn_x=False, turn_y=False):
    """x y (+ acc) of float32 matrices, or x' and y', to 2^-16 or better with operands of `dtype`."""
    xs, ys = ([m] if dtype == torch.float32 else pieces_of(m, 2) for m in (x, y))
    xs, ys = map(transposed, xs) if turn_x else xs, map(transposed, ys) if turn_y else ys
    return product_of_pieces(list(xs), list(ys), how, acc)


def summed(picks, x, pieces, how):
    """picks x for a matrix of zeros and ones, x as a sum of `pieces` of 8 bits."""
    return product_of_pieces([torch.where(picks, 1.0, 0.0).to(torch.bfloat16)], pieces_of(x, pieces), how)


def decay_over(picks, w, pieces, how):
    """exp of the sums of the gates w that each row of `picks` picks, (C, width)."""
    return torch.exp2(summed(picks, w, pieces, how) * LOG2E)


def decay_apart(picks, whole, rest, single, fine, how):
    """The decay over the steps that each row of `picks`, zeros and ones, picks."""
    if single:
        return torch.exp2(product_of_pieces([picks], pieces_of(whole, 1), how) * LOG2E)
    n = product_of_pieces([picks], pieces_of(whole, 1), how)
    return torch.exp2(n) * torch.exp2(product_of_pieces([picks], pieces_of(rest, 3 if fine else 2), how))


def gathered(picks, x, pieces, how, acc):
    """acc + picks' x: what gates owe to x, which has decays over the steps that its rows pick as factors."""
    return product_of_pieces([transposed(picks)], pieces_of(x, pieces), how, acc)


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
    """Which of the rows t and columns d exist in x (B, T, H, D)."""
    return (t < x.size(1)).unsqueeze(1) & (d < x.size(3)).unsqueeze(0)


def load(x, b, t, h, d):
    """Rows t and columns d of x[b, :, h, :], 0 outside."""
    return hl.load(x, [b, t, h, d], extra_mask=inside(t, d, x))


def store(x, b, t, h, d, value):
    hl.store(x, [b, t, h, d], value.to(x.dtype), extra_mask=inside(t, d, x))


def columns_inside(r, d, states):
    """Which of the columns d a state has."""
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
    """Row i picks the steps from first_i up to before last_i."""
    j = position.unsqueeze(0)
    return (first.unsqueeze(1) <= j) & (j < last.unsqueeze(1))


def in_right(position, half):
    """Which rows are in the right half of their block of 2 `half`, (C, 1)."""
    return ((position & half) != 0).unsqueeze(1)


def towards_middle(position, half):
    """Row i picks the steps between it and the middle of its block; itself if it is in the right half."""
    start = position & -half
    right = (position & half) != 0
    first, last = torch.where(right, start, position + 1), torch.where(right, position + 1, start + half)
    return between(position, first, last)


def across_middle(position, half):
    """Row i picks the steps of the other half of its block."""
    other = (position & -half) ^ half
    return between(position, other, other + half)


def sums_of_halves(w, position, chunk):
    """The gates of the left and of the right half of a chunk, each (1, width)."""
    right = in_right(position, chunk // 2)
    left_sum, right_sum = torch.where(right, 0.0, w).sum(0), torch.where(right, w, 0.0).sum(0)
    return left_sum.unsqueeze(0), right_sum.unsqueeze(0)


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
    chunk: hl.constexpr,
    width: hl.constexpr,
    reverse: hl.constexpr,
    pieces: hl.constexpr,
    least: hl.constexpr,
    how: hl.constexpr,
):
    """Q, K, D and A of every chunk; one program a chunk."""
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
            # from the middle of the chunk a query's factor and a key's are inverse
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
                # rows of right halves are queries, rows of left halves keys: one product has both;
                # read again, as registers that only levels need would slow every chunk: 168 us against 120
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
    chunk: hl.constexpr,
    width: hl.constexpr,
    backwards: hl.constexpr,
    columns: hl.constexpr,
    blocks: hl.constexpr,
    how: hl.constexpr,
):
    """s <- D s + y' v from chunk to chunk and, where asked, o = x s + A v; one program for some columns.

    x and y are (B, H, N, C, width), v and o (B, T, H, Dv), initial (B, H, Dk, Dv) or None for zeros; states
    (B, H, N, width, Dv) receives s before every chunk, final (B, H, Dk, Dv) s after the last, in float32.
    """
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
    dq: torch.Tensor,
    dk: torch.Tensor,
    dg: torch.Tensor | None,
    dgk: torch.Tensor | None,
    scale: float,
    chunk: hl.constexpr,
    width: hl.constexpr,
    reverse: hl.constexpr,
    pieces: hl.constexpr,
    least: hl.constexpr,
    least_gate: hl.constexpr,
    columns: hl.constexpr,
    blocks: hl.constexpr,
    how: hl.constexpr,
):
    """dq, dk and the gradients of gates from h before a chunk and its adjoint after it; one program a chunk.

    dg is (B, T, H) in fp32, for g and g_gamma.
    """
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
        terms = 2 if states.dtype == torch.bfloat16 else 3
        # what came before the chunk and leaves it, times its gradient: every gate of the chunk scales it
        through = kept * hl.load(decay, [b, h, c, r])
        if (near.amin(1).amin(0) >= least) & (w.amin(1).amin(0) >= least_gate):
            far = reciprocal(near, how)
            is_right = in_right(position, chunk // 2)
            up, down = torch.where(is_right, near, far), torch.where(is_right, far, near)
            left, right = sums_of_halves(w, position, chunk)
            pairs = torch.where(i >= j, da, 0.0)
            x = load(q, b, t, h, r).to(torch.float32) * scale * up
            dqs = dqs * torch.exp2(left * LOG2E)
            # the gates of the first step: from there on, so that they are 0 where no state was before
            first = through + (x * dqs).sum(0)
            dks = fine_product(pairs, x, states.dtype, how, dks * torch.exp2(right * LOG2E), turn_x=True)
            store(dk, b, t, h, r, dks * down)
            y = load(k, b, t, h, r).to(torch.float32) * down
            difference = y * dks
            dqs = fine_product(pairs, y, states.dtype, how, dqs)
            store(dq, b, t, h, r, dqs * up * scale)
            # q is read again: a tile less to keep in registers
            difference = difference - load(q, b, t, h, r).to(torch.float32) * scale * up * dqs
            dw = summed(j < i, difference, terms, how) + first.unsqueeze(0)
        else:
            whole, rest = exponents(q, g, g_gamma, gk, b, t, h, r, pieces == 1)
            k32 = load(k, b, t, h, r).to(torch.float32)
            q32 = load(q, b, t, h, r).to(torch.float32) * scale
            diagonal = torch.where(i == j, da, 0.0).sum(1).unsqueeze(1)
            dqs = dqs * decay_apart(ones(j <= i), whole, rest, pieces == 1, terms == 3, how)
            dks = dks * decay_apart(ones(j > i), whole, rest, pieces == 1, terms == 3, how)
            # the gates of a decay exp(P w) owe P' times what it is a factor of to each that has it
            dw = through.unsqueeze(0) + summed(j >= i, q32 * dqs, terms, how)
            dw = dw + summed(j < i, k32 * dks, terms, how)
            dqs = dqs + diagonal * k32
            dks = dks + diagonal * q32
            both = torch.where(i > j, da, transposed(da))
            half = hl.full([], 1, dtype=torch.int32)
            for _level in range(chunk.bit_length() - 1):
                is_right = in_right(position, half)
                picks = ones(near_middle(i, j, half))
                near = decay_apart(picks, whole, rest, pieces == 1, terms == 3, how)
                x = torch.where(is_right, q32, k32)
                pairs = torch.where(across_middle(position, half), both, 0.0)
                # rows of right halves are gradients of queries, rows of left halves of keys
                dx = fine_product(pairs, x * near, states.dtype, how) * near
                dqs = dqs + torch.where(is_right, dx, 0.0)
                dks = dks + torch.where(is_right, 0.0, dx)
                dw = gathered(picks, x * dx, terms, how, dw)
                half = half * 2
            store(dq, b, t, h, r, dqs * scale)
            store(dk, b, t, h, r, dks)
        if gk is not None:
            store(dgk, b, t, h, r, dw)
        if dg is not None:
            hl.store(dg, [b, t, h], dw.sum(1), extra_mask=t < dg.size(1))
