"""Recurrent linear attention in vectorised PyTorch, forward and exact backward, step by step.

What a CPU runs, and a GPU for float64.  docs/dev/linear_attention.md derives the gradients.  The gradient
of a decay needs the state before a step and the gradient of the state after it at once: the backward keeps
the state before every BLOCK steps, and the states of one block.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import torch

Some = torch.Tensor | None
BLOCK = 32
"""Steps of which the backward keeps all states; of the others it keeps one in so many."""


def _wide(x: Some, dtype: torch.dtype) -> Some:
    return None if x is None else x.to(dtype)


def _outer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def _decay(*gates: Some, dtype: torch.dtype) -> Some:
    """exp of the sum of the gates that are there.

    In float64, since an error of the sum, which grows with it, is a relative one of the decay.
    """
    given = [x.double() for x in gates if x is not None]
    return functools.reduce(torch.add, given).exp().to(dtype) if given else None


class _Span:
    """Sequences of one length, walked together: (B, L, H, D) in the computing dtype."""

    def __init__(self, q, k, v, g, g_gamma, gk, gv, scale, start, reverse):
        self.q, self.k, self.v, self.scale = q, k, v, scale
        self.start = q.new_zeros(q.size(0), *q.shape[2:], v.size(-1)) if start is None else start
        steps = range(q.size(1))
        self.order = steps[::-1] if reverse else steps
        heads = None if g_gamma is None else g_gamma.view(-1, 1).expand(*q.shape[:3], 1)
        self.rows = _decay(None if g is None else g.unsqueeze(-1), heads, gk, dtype=q.dtype)
        self.rows = None if self.rows is None else self.rows.unsqueeze(-1)
        self.columns = None if gv is None else gv.exp().unsqueeze(-2)

    def decayed(self, h: torch.Tensor, t: int) -> torch.Tensor:
        if self.rows is not None:
            h = h * self.rows[:, t]
        return h if self.columns is None else h * self.columns[:, t]

    def after(self, h: torch.Tensor, t: int) -> torch.Tensor:
        """The state that step t reads, from the one before it."""
        return self.decayed(h, t) + _outer(self.k[:, t], self.v[:, t])

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(o, the last state)."""
        o, h = torch.empty_like(self.v), self.start
        for t in self.order:
            h = self.after(h, t)
            o[:, t] = (self.q[:, t].unsqueeze(-1) * h).sum(-2) * self.scale
        return o, h

    def backward(self, do: torch.Tensor, dend: Some) -> tuple[torch.Tensor, ...]:
        """dq, dk, dv, the gradient of a decay of the rows, of one of the columns, of the start.

        A decay's gradient is the state before its step times the dual after it, decayed and summed.  Its own
        side decays last: entries that both sides decay may be below the range of float32.
        """
        blocks = [self.order[begin : begin + BLOCK] for begin in range(0, len(self.order), BLOCK)]
        starts, h = [], self.start
        for steps in blocks:
            starts.append(h)
            for t in steps:
                h = self.after(h, t)
        dh = torch.zeros_like(self.start) if dend is None else dend
        dq, dk, dv, drows, dcolumns = (torch.empty_like(x) for x in (self.q, self.k, self.v, self.k, self.v))
        for start, steps in zip(reversed(starts), reversed(blocks), strict=True):
            states = [start]
            for t in steps:
                states.append(self.after(states[-1], t))
                dq[:, t] = (states[-1] * do[:, t].unsqueeze(-2)).sum(-1) * self.scale
            for t, before in zip(reversed(steps), states[-2::-1], strict=True):
                dh = dh + _outer(self.q[:, t], do[:, t] * self.scale)
                dk[:, t] = (dh * self.v[:, t].unsqueeze(-2)).sum(-1)
                dv[:, t] = (dh * self.k[:, t].unsqueeze(-1)).sum(-2)
                if self.rows is not None:
                    meeting = before if self.columns is None else before * self.columns[:, t]
                    drows[:, t] = (dh * meeting).sum(-1) * self.rows[:, t, ..., 0]
                if self.columns is not None:
                    meeting = before if self.rows is None else before * self.rows[:, t]
                    dcolumns[:, t] = (dh * meeting).sum(-2) * self.columns[:, t, ..., 0, :]
                dh = self.decayed(dh, t)
        return dq, dk, dv, drows, dcolumns, dh


def _offsets(cu_seqlens: torch.Tensor, steps: int) -> list[int]:
    """Their values, which transforms and compilers do not know before this."""
    offsets = cu_seqlens.tolist()
    if offsets[0] < 0 or offsets[-1] > steps or offsets != sorted(offsets):
        raise ValueError(f"cu_seqlens is {offsets}; pass ascending offsets of 0 to T = {steps}")
    return offsets


def _spans(q, k, v, g, g_gamma, gk, gv, scale, start, reverse, cu_seqlens) -> Iterator[tuple[slice, _Span]]:
    """(steps, span) of everything at once, or of one packed sequence after another."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    q, k, v, g, g_gamma, gk, gv, start = (_wide(x, dtype) for x in (q, k, v, g, g_gamma, gk, gv, start))
    if cu_seqlens is None:
        yield slice(None), _Span(q, k, v, g, g_gamma, gk, gv, scale, start, reverse)
        return
    for n, (begin, end) in enumerate(itertools.pairwise(_offsets(cu_seqlens, q.size(1)))):
        at = slice(begin, end)
        parts = [None if x is None else x[:, at] for x in (q, k, v, g, gk, gv)]
        own = None if start is None else start[n : n + 1]
        yield at, _Span(*parts[:4], g_gamma, *parts[4:], scale, own, reverse)


def forward(
    q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state); the contract is linear_attention.recurrent_linear_attention's."""
    o, states = torch.zeros_like(v, memory_format=torch.contiguous_format), []
    for at, span in _spans(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens):
        o[:, at], state = span.forward()
        states.append(state)
    return o, torch.cat(states)


def backward(
    do, dend, q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens
) -> list[torch.Tensor]:
    """Gradients of q, k, v and of each of g, g_gamma, gk, gv, initial_state that is there, in this order."""
    do = torch.zeros_like(v) if do is None else do
    dq, dk, dv = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    dtype = torch.promote_types(q.dtype, torch.float32)
    drows, dcolumns = torch.zeros_like(dk, dtype=dtype), torch.zeros_like(dv, dtype=dtype)
    starts = []
    spans = _spans(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens)
    for n, (at, span) in enumerate(spans):
        own = dend if dend is None or cu_seqlens is None else dend[n : n + 1]
        results = span.backward(do[:, at].to(dtype), own)
        for whole, part in zip((dq, dk, dv, drows, dcolumns), results, strict=False):
            whole[:, at] = part
        starts.append(results[-1])
    gates = (
        None if g is None else drows.sum(-1).to(g.dtype),
        None if g_gamma is None else drows.sum((0, 1, 3)).to(g_gamma.dtype),
        None if gk is None else drows.to(gk.dtype),
        None if gv is None else dcolumns.to(gv.dtype),
        None if initial_state is None else torch.cat(starts),
    )
    return [dq, dk, dv, *(x for x in gates if x is not None)]
