"""The Helion kernel body of recurrent linear attention: one walk over time with the state in registers.

A walk reads one vector per step out of a state H (Dk x Dv), which decays and takes a rank-one update:

    early:  H <- D_t * H + k_t v_t',  o_t = scale H' q_t
    late:   H <- H + scale k_t v_t',  o_t = H' q_t,  H <- D_t * H
    D_t[i, j] = exp(g_t + g_gamma + gk_t[i] + gv_t[j])

The operator and its three vector gradients are four walks (docs/dev/linear_attention.md), which take the
operator's tensors in different roles.  A walk sums over Dk only, so tiles of Dv are independent:

    result  q   k   v   gk  gv  steps     decay
    o       q   k   v   gk  gv  in order  early
    dq      do  v   k   gv  gk  in order  early
    dk      v   do  q   gv  gk  reversed  late
    dv      k   q   do  gk  gv  reversed  late

A vector of the Dk side has the shape (ck, rk), one of the Dv side (cv, rv).  Triton distributes the last axes
of a tile over threads, so a thread has rk x rv entries of the state (rk, rv, cv, ck) in registers, which are
contiguous in memory, and the sum over Dk is rk additions in a thread and log2(ck) exchanges within a warp.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.runtime.device_math import LOG2E, multiply_add, summed_in_order


def over_k(w):
    """A vector of the Dk side, broadcast over the state."""
    return w.permute(1, 0).unsqueeze(1).unsqueeze(1)


def over_v(w):
    """A vector of the Dv side, broadcast over the state."""
    return w.permute(1, 0).unsqueeze(0).unsqueeze(3)


def summed(h, rk, in_order):
    """The sum of a state over Dk, (cv, rv).

    From Triton 3.8 on the sum of a thread's entries is a tree, in which every second product is fused; in
    order all but the first are.
    """
    if in_order:
        like = hl.zeros([h.size(1), h.size(2), h.size(3)], dtype=torch.float32)
        of_thread = summed_in_order(h, 0, rk, like)
    else:
        of_thread = h.sum(0)
    return of_thread.sum(2).permute(1, 0)


def of_k(x, first, sign, many, together, head):
    """Loads of the vectors of the Dk side at `many` steps from `first` on, `together` steps in each."""
    if x is None:
        return None
    ts = [first + sign * i for i in range(0, many, together)]
    if together > 1:
        ts = [t + sign * hl.arange(together) for t in ts]
    return [hl.load(x, [t, head, slice(None), slice(None)]) for t in ts]


def entries_of(vector, x):
    """A vector of the Dk side in float32, from entries or, as int32, words of two in bfloat16."""
    if x.dtype != torch.int32:
        return vector.to(torch.float32)
    low, high = (vector << 16).view(torch.float32), (vector & -65536).view(torch.float32)
    return hl.join(low, high).reshape(x.size(2), 2 * x.size(3))


def apart(loaded, x, steps):
    """The vectors of one load of so many steps, a power of two."""
    if steps == 1:
        return [entries_of(loaded.reshape(x.size(2), x.size(3)), x)]
    halves = loaded.reshape(2, steps // 2, x.size(2), x.size(3)).permute(1, 2, 3, 0)
    return [one for half in hl.split(halves) for one in apart(half, x, steps // 2)]


def at_steps(loads, x, i, together):
    """The vectors of the Dk side at steps i to i + together - 1."""
    return [None] * together if x is None else apart(loads[i // together], x, together)


def of_v(x, t, head, tile):
    """One step's vector of the Dv side."""
    loaded = hl.load(x, [t, head, tile, slice(None)])
    return loaded.view(tile.block_size, x.size(3)).to(torch.float32)


def of_step(g, t, head):
    """One step's log decay of the whole state."""
    return hl.load(g, [t, head]).to(torch.float32)


def of_head(g_gamma, head):
    """The head's own log decay."""
    return None if g_gamma is None else hl.load(g_gamma, [head]).to(torch.float32)


def added(first, second):
    """The sum of two values of which either may be None."""
    if first is None or second is None:
        return second if first is None else first
    return first + second


def decayed(h, rate, gk, gv):
    """exp(rate + gk + gv) h, with one exponential for each entry of a vector."""
    if gk is not None:
        h = h * over_k(torch.exp2(added(gk, rate) * LOG2E))
        rate = None
    if gv is not None:
        h = h * over_v(torch.exp2(added(gv, rate) * LOG2E))
        rate = None
    return h if rate is None else h * torch.exp2(rate * LOG2E)


def updated(h, k, v, how):
    """h + k v by the instruction that `how` names.

    Without one a compiler fuses this product or the decay of h, depending on whether states are kept: k had
    other bits in a gradient alone than beside one of gk (float32, sm_90).
    """
    return h + k * v if how is None else multiply_add(k, v, h, how)


def lane(w):
    """A vector (cv, rv) as (rv, cv, 1), the same for every lane."""
    return w.permute(1, 0).unsqueeze(2)


def stacked(parts, number):
    """Vectors (rv, cv, 1 or all lanes) as (cv lanes, rv), with a lane for each and the last one repeated.

    Selects leave the vectors in the threads that have the sums over Dk; a join would move each through shared
    memory.  So would a store of three axes from Triton 3.7 on, which distributes cv over threads before
    lanes.
    """
    stack = parts[-1]
    for i in range(len(parts) - 1):
        stack = torch.where(number == i, parts[i], stack)
    stack = stack.expand(stack.size(0), stack.size(1), number.size(0))
    return stack.reshape(stack.size(0), stack.size(1) * number.size(0)).permute(1, 0)


def walk(h, tensors, rate, tile, begin, first, many, head, scale, facts):
    """The state after `many` steps, with all loads first, which would wait at the barriers of exchanges."""
    q, k, v, o, g, gk, gv = tensors
    count, _, descending, late, together, in_order, how = facts
    together = min(together, many)
    sign = -1 if descending else 1
    ts = [first + sign * (begin + i) for i in range(many)]

    def loaded(load, x, *where):
        return [None if x is None else load(x, t, head, *where) for t in ts]

    q_loads, k_loads, gk_loads = [of_k(x, ts[0], sign, many, together, head) for x in (q, k, gk)]
    vs, gvs = loaded(of_v, v, tile), loaded(of_v, gv, tile)
    rates = [added(one, rate) for one in loaded(of_step, g)]
    outs = []
    for i in range(many):
        j = i % together
        if j == 0:
            qs, ks = at_steps(q_loads, q, i, together), at_steps(k_loads, k, i, together)
            gks = at_steps(gk_loads, gk, i, together)
        if late:
            h = updated(h, over_k(ks[j]), over_v(vs[i] * scale), how)
        else:
            h = updated(decayed(h, rates[i], gks[j], gvs[i]), over_k(ks[j]), over_v(vs[i]), how)
        out = summed(over_k(qs[j]) * h, h.size(0), in_order)
        outs.append(lane(out if late else out * scale))
        if late:
            h = decayed(h, rates[i], gks[j], gvs[i])
    number = hl.arange(count)
    # Upward from the lowest token, since AMD's buffer offsets are unsigned and no lane may subtract its part.
    # Lanes without a step repeat the last one.
    lowest, rising = (ts[-1], outs[::-1]) if descending else (ts[0], outs)
    at = lowest + number.clamp(max=many - 1)
    # Unmasked: units are a power of two, so a block divides them.
    unit = (at.unsqueeze(0) * q.size(1) + head) * v.size(2) + tile.index.unsqueeze(1)
    hl.store(o, [unit.reshape(tile.block_size * count), slice(None)], stacked(rising, number).to(o.dtype))
    return h


def span_of(cu_seqlens, n, length):
    """First token and number of tokens of sequence n."""
    if cu_seqlens is None:
        return n * length, length
    # of one axis, since Triton 3.9 takes no tensor of none as an index, and of Helion's type of indices
    zero = hl.arange(1)
    begin = hl.load(cu_seqlens, [n]).to(zero.dtype)
    return begin + zero, hl.load(cu_seqlens, [n + 1]).to(zero.dtype) - begin


def first_slot(cu_seqlens, n, begin, blocks, span):
    """Where the kept states of sequence n begin; packed sequences take one more than they need."""
    return n * blocks if cu_seqlens is None else begin // span + n


def kept_state(h, cu_seqlens):
    """A state in the order of memory; a slot read from cu_seqlens has an axis of its own."""
    turned = h.permute(3, 0, 2, 1)
    return turned if cu_seqlens is None else turned.unsqueeze(0)


def of_state(x, pair, tile, ck, rk, units):
    """A sequence's state in the layout of the threads that sum over Dk.

    The loop keeps the layout of this load.  Rows on one axis, in the order (rk, cv, ck), leave no choice.  A
    tile of six axes would take the order of memory, in which sums cross warps and 64 x 128 entries spill 96
    bytes a thread under Triton 3.6 and 800 under 3.9 (o, bfloat16, sm_90).
    """
    inner, outer = hl.arange(rk), hl.arange(ck)
    before = ((pair * ck + outer.unsqueeze(0)) * rk + inner.unsqueeze(1)) * units
    rows = before.unsqueeze(1) + tile.index.unsqueeze(0).unsqueeze(2)
    loaded = hl.load(x, [rows.reshape(rk * tile.block_size * ck), slice(None)])
    return loaded.reshape(rk, tile.block_size, ck, x.size(1)).permute(0, 3, 1, 2)


def in_turn(i, count, late):
    """The i-th of `count` places, counted from the end if late."""
    return count - 1 - i if late else i


def first_step(begin, size, below, many, descending, late):
    """The token at which a walk enters the `many` steps from `below` on of a sequence."""
    position = below + many - 1 if late else below
    return begin + size - 1 - position if descending != late else begin + position


def linear_attention_walk(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    g: torch.Tensor | None,
    g_gamma: torch.Tensor | None,
    gk: torch.Tensor | None,
    gv: torch.Tensor | None,
    start: torch.Tensor | None,
    end: torch.Tensor | None,
    states: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    sequences: int,
    length: int,
    scale: float,
    facts: hl.constexpr,
):
    """One walk of every sequence and head; tokens of all sequences lie on one axis.

    q, k, gk (tokens, H, ck, rk), v, gv (tokens, H, cv, rv), o the same as (tokens H cv, rv), g (tokens, H),
    g_gamma (H,); states start (N H Dk cv, rv) and end (N, H, ck, rk, cv, rv), float32.  Sequence n has the
    tokens cu_seqlens[n] to cu_seqlens[n + 1], or n length to (n + 1) length.  A gate or a result may be None,
    and so may start, which is then 0.  cv is a power of two.  q, k and gk may be int32, words of two entries;
    one load takes `together` steps of them, a power of two that divides count.

    states (slots, H, ck, rk, cv, rv) receives the state with which a walk enters every `span` steps of a
    sequence: before the first of them in time if early, after the last one if late.
    """
    count, span, descending, late = facts[:4]
    heads, ck, run = hl.specialize((q.size(1), q.size(2), q.size(3)))
    rk = 2 * run if q.dtype == torch.int32 else run
    units, rv = hl.specialize((v.size(2), v.size(3)))
    tensors = (q, k, v, o, g, gk, gv)
    # vector loads need strides that are known to make threads read neighbours
    hl.specialize((q.stride(), k.stride(), v.stride(), o.stride()))
    if gk is not None:
        _ = hl.specialize(gk.stride())
    if gv is not None:
        _ = hl.specialize(gv.stride())
    if start is not None:
        _run = hl.specialize((start.size(1), start.stride(0), start.stride(1)))
    for pair, tile in hl.tile([sequences * heads, units], block_size=[1, None]):
        n = pair.begin // heads
        head = pair.begin % heads
        begin, size = span_of(cu_seqlens, n, length)
        if start is None:
            h = hl.zeros([rk, rv, tile, ck], dtype=torch.float32)
        else:
            h = of_state(start, pair.begin, tile, ck, rk, units)
        rate = of_head(g_gamma, head)
        blocks = (size + span - 1) // span
        slot = first_slot(cu_seqlens, n, begin, blocks, span)
        for block in hl.tile(0, blocks, block_size=1):
            number = in_turn(block.begin, blocks, late)
            if states is not None:
                kept = kept_state(h, cu_seqlens)
                states[slot + number, head, :, :, tile, :] = kept
            below = number * span
            many = min(size - below, span)
            first = first_step(begin, size, below, many, descending, late)
            whole = many // count * count
            for steps in hl.tile(0, whole, block_size=count):
                h = walk(h, tensors, rate, tile, steps.begin, first, count, head, scale, facts)
            for rest in hl.tile(whole, many, block_size=1):
                h = walk(h, tensors, rate, tile, rest.begin, first, 1, head, scale, facts)
        if end is not None:
            end[n, head, :, :, tile, :] = h.permute(3, 0, 2, 1)
