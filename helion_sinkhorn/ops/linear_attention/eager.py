"""Recurrent linear attention in vectorised PyTorch, forward and exact backward, step by step.

A CPU runs this, and a GPU for float64.  docs/dev/linear_attention.md derives the gradients.  The gradient of
a decay needs the state before a step together with the gradient of the state after it, so the backward keeps
the state before every BLOCK steps, and all states of one block.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

import torch

from helion_sinkhorn.ops.linear_attention.problem import Problem
from helion_sinkhorn.runtime.wanted import Some, room_for

BLOCK = 32
"""The backward keeps the state before every so many steps, and all states of one such block."""
STEPWISE = "q", "k", "v", "g", "gk", "gv"
"""The arguments that have an entry for each step."""


def _outer(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return k.unsqueeze(-1) * v.unsqueeze(-2)


def _decay(*gates: Some, dtype: torch.dtype) -> Some:
    """exp of the sum of the gates that are given.

    The sum is in float64, since its error, which grows with it, is a relative error of the decay.
    """
    given = [x.double() for x in gates if x is not None]
    return functools.reduce(torch.add, given).exp().to(dtype) if given else None


class _Span:
    """Sequences of one length that are computed together: (B, L, H, D) in the computing dtype."""

    def __init__(self, p: Problem):
        self.q, self.k, self.v, self.scale = p.q, p.k, p.v, p.scale
        self.start = p.initial_state
        if self.start is None:
            self.start = p.q.new_zeros(p.q.size(0), *p.q.shape[2:], p.v.size(-1))
        steps = range(p.q.size(1))
        self.order = steps[::-1] if p.reverse else steps
        heads = None if p.g_gamma is None else p.g_gamma.view(-1, 1).expand(*p.q.shape[:3], 1)
        self.rows = _decay(None if p.g is None else p.g.unsqueeze(-1), heads, p.gk, dtype=p.q.dtype)
        self.rows = None if self.rows is None else self.rows.unsqueeze(-1)
        self.columns = None if p.gv is None else p.gv.exp().unsqueeze(-2)

    def decayed(self, h: torch.Tensor, t: int) -> torch.Tensor:
        if self.rows is not None:
            h = h * self.rows[:, t]
        return h if self.columns is None else h * self.columns[:, t]

    def after(self, h: torch.Tensor, t: int) -> torch.Tensor:
        """The state that step t reads, from the state before the step."""
        return self.decayed(h, t) + _outer(self.k[:, t], self.v[:, t])

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(o, the last state)."""
        o, h = torch.empty_like(self.v), self.start
        for t in self.order:
            h = self.after(h, t)
            o[:, t] = (self.q[:, t].unsqueeze(-1) * h).sum(-2) * self.scale
        return o, h

    def backward(self, do: torch.Tensor, dend: Some, wanted: Sequence[bool]) -> tuple[Some, ...]:
        """dq, dk, dv, the gradients of the decays of rows and of columns if wanted, and that of the start.

        The gradient of a decay is the state before its step times the gradient of the state after it, decayed
        and summed.  The decay of its own side is applied last, since entries that both sides decay may be
        below the range of float32.
        """
        made = room_for((self.q, self.k, self.v, self.k, self.v), wanted)
        dq, dk, dv, drows, dcolumns = made
        needs_states = not (dq is None and drows is None and dcolumns is None)
        blocks = [self.order[begin : begin + BLOCK] for begin in range(0, len(self.order), BLOCK)]
        starts, h = [], self.start
        for steps in blocks:
            starts.append(h)
            for t in steps if needs_states else ():
                h = self.after(h, t)
        dh = torch.zeros_like(self.start) if dend is None else dend
        for start, steps in zip(reversed(starts), reversed(blocks), strict=True):
            states = [start]
            for t in steps:
                states.append(self.after(states[-1], t) if needs_states else start)
                if dq is not None:
                    dq[:, t] = (states[-1] * do[:, t].unsqueeze(-2)).sum(-1) * self.scale
            for t, before in zip(reversed(steps), states[-2::-1], strict=True):
                dh = dh + _outer(self.q[:, t], do[:, t] * self.scale)
                if dk is not None:
                    dk[:, t] = (dh * self.v[:, t].unsqueeze(-2)).sum(-1)
                if dv is not None:
                    dv[:, t] = (dh * self.k[:, t].unsqueeze(-1)).sum(-2)
                if drows is not None:
                    meeting = before if self.columns is None else before * self.columns[:, t]
                    drows[:, t] = (dh * meeting).sum(-1) * self.rows[:, t, ..., 0]
                if dcolumns is not None:
                    meeting = before if self.rows is None else before * self.rows[:, t]
                    dcolumns[:, t] = (dh * meeting).sum(-2) * self.columns[:, t, ..., 0, :]
                dh = self.decayed(dh, t)
        return *made, dh


def _offsets(cu_seqlens: torch.Tensor, steps: int) -> list[int]:
    """The offsets as numbers, which transforms and compilers do not know before this call."""
    offsets = cu_seqlens.tolist()
    if offsets[0] < 0 or offsets[-1] > steps or offsets != sorted(offsets):
        raise ValueError(f"cu_seqlens is {offsets}; pass ascending offsets of 0 to T = {steps}")
    return offsets


def _spans(p: Problem) -> Iterator[tuple[slice, _Span]]:
    """(steps, span) of everything at once, or of one packed sequence after another."""
    dtype = torch.promote_types(p.q.dtype, torch.float32)
    wide = Problem(*[x.to(dtype) if isinstance(x, torch.Tensor) else x for x in p[:-1]])
    if p.cu_seqlens is None:
        yield slice(None), _Span(wide)
        return
    for n, (begin, end) in enumerate(itertools.pairwise(_offsets(p.cu_seqlens, p.q.size(1)))):
        at = slice(begin, end)
        parts = {name: x[:, at] for name in STEPWISE if (x := getattr(wide, name)) is not None}
        if wide.initial_state is not None:
            parts["initial_state"] = wide.initial_state[n : n + 1]
        yield at, _Span(wide._replace(**parts))


def forward(p: Problem) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state); the contract is linear_attention.recurrent_linear_attention's."""
    o, states = torch.zeros_like(p.v, memory_format=torch.contiguous_format), []
    for at, span in _spans(p):
        o[:, at], state = span.forward()
        states.append(state)
    return o, torch.cat(states)


def backward(do: Some, dend: Some, p: Problem, wanted: Sequence[bool]) -> tuple[Some, ...]:
    """Gradients of q, k, v, g, g_gamma, gk, gv and initial_state, None for each that is not wanted."""
    *of_vectors, of_g, of_gamma, of_gk, of_gv, of_start = wanted
    do = torch.zeros_like(p.v) if do is None else do
    dtype = torch.promote_types(p.q.dtype, torch.float32)
    own = *of_vectors, of_g or of_gamma or of_gk, of_gv
    like = (p.q, p.q.dtype), (p.k, p.k.dtype), (p.v, p.v.dtype), (p.k, dtype), (p.v, dtype)
    *made, drows, dcolumns = sums = [
        torch.zeros(x.shape, dtype=kind, device=x.device) if w else None
        for (x, kind), w in zip(like, own, strict=True)
    ]
    starts = []
    for n, (at, span) in enumerate(_spans(p)):
        last = dend if dend is None or p.cu_seqlens is None else dend[n : n + 1]
        *results, start = span.backward(do[:, at].to(dtype), last, own)
        for whole, part in zip(sums, results, strict=True):
            if whole is not None:
                whole[:, at] = part
        starts.append(start)
    return (
        *made,
        drows.sum(-1).to(p.g.dtype) if of_g else None,
        drows.sum((0, 1, 3)).to(p.g_gamma.dtype) if of_gamma else None,
        drows.to(p.gk.dtype) if of_gk else None,
        dcolumns.to(p.gv.dtype) if of_gv else None,
        torch.cat(starts) if of_start else None,
    )
