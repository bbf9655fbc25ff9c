"""From tensors to the launches of chunked linear attention: o, and the gradient of everything that made it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.kernels import Choice, build, launch
from helion_sinkhorn.kernels.linear_attention_chunked import ChunkCall
from helion_sinkhorn.kernels.linear_attention_launch import WIDE, Problem, Some

MOST_CHANNELS = 128
"""Largest Dk: a program holds a chunk of all channels."""


def serves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gv: Some, cu_seqlens: Some) -> bool:
    """Whether the chunked kernels know such a call; the walk knows every one.

    A decay of the values (gv) is no factor of A, and packed sequences cut chunks anywhere.
    """
    return gv is None and cu_seqlens is None and q.size(1) > 1 and q.size(3) <= MOST_CHANNELS


def call_of(p: Problem) -> ChunkCall:
    return ChunkCall(str(p.q.dtype)[6:], p.q.size(3), p.v.size(3), p.gates)


def pieces(p: Problem) -> int:
    """Numbers of 8 bits that a sum of gates at one step is made of."""
    return 1 if p.gates in ("", "gk") and (p.gk is None or p.gk.dtype == torch.bfloat16) else 3


@dataclass(frozen=True)
class Scratch:
    """What `chunk_scores` leaves of q, k and the gates (kernels.linear_attention_chunked has the layouts)."""

    qs: torch.Tensor
    ks: torch.Tensor
    decay: torch.Tensor
    a: torch.Tensor


def empty(p: Problem, *shape: int, dtype: torch.dtype = WIDE) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=p.q.device)


def chosen(p: Problem, kernel: str) -> Choice:
    """The stored config of a kernel, or its default."""
    device, _, _ = launch.device_at(launch.index_of(p.q))
    return launch.choose(kernel, call_of(p), p.q.size(0) * p.q.size(2), device)


def start(p: Problem, choice: Choice, *arguments: object) -> None:
    """One launch; the tile, where there is one, and how to multiply come last."""
    _, how, interpret = launch.device_at(launch.index_of(p.q))
    columns = dict(choice.variant).get("columns")
    tile = () if columns is None else (columns, -(-p.v.size(3) // columns))
    launch.run(build(choice.kernel, choice.config, interpret), *arguments, *tile, how)


def scores(p: Problem, choice: Choice | None = None) -> Scratch:
    call = call_of(p)
    batch, steps, heads, _ = p.q.shape
    chunks = -(-steps // call.chunk)
    operand = getattr(torch, call.operand)
    s = Scratch(
        *(empty(p, batch, heads, chunks, call.chunk, call.width, dtype=operand) for _ in range(2)),
        empty(p, batch, heads, chunks, call.width),
        empty(p, batch, heads, chunks, call.chunk, call.chunk, dtype=operand),
    )
    start(
        p, choice or chosen(p, "chunk_scores"),
        p.q, p.k, p.g, p.g_gamma, p.gk, s.qs, s.ks, s.decay, s.a, p.scale,
        call.chunk, call.width, p.reverse, pieces(p), call.least,
    )  # fmt: skip
    return s


def states(
    p: Problem,
    x: torch.Tensor,
    y: torch.Tensor,
    decay: torch.Tensor,
    initial: Some,
    backwards: bool,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what is in the state before every chunk, in the order walked, and after the last)."""
    call = call_of(p)
    before = empty(p, *decay.shape, p.v.size(3), dtype=x.dtype)
    last = p.new_state()
    start(
        p, choice or chosen(p, "chunk_states"),
        x, y, decay, initial, before, last, call.chunk, call.width, backwards,
    )  # fmt: skip
    return before, last


def outputs(p: Problem, s: Scratch, before: torch.Tensor, choice: Choice | None = None) -> torch.Tensor:
    call = call_of(p)
    o = torch.empty_like(p.v)
    start(p, choice or chosen(p, "chunk_outputs"), s.qs, s.a, before, p.v, o, call.chunk, call.width)
    return o


def gradients(
    p: Problem,
    s: Scratch,
    do: torch.Tensor,
    before: torch.Tensor,
    after: torch.Tensor,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Some, Some]:
    """(dq, dk, dv, dg (B, T, H) in float32 for g and g_gamma, dgk)."""
    call = call_of(p)
    dq, dk, dv = torch.empty_like(p.q), torch.empty_like(p.k), torch.empty_like(p.v)
    dg = None if p.g is None and p.g_gamma is None else empty(p, *p.q.shape[:3])
    dgk = None if p.gk is None else torch.empty_like(p.gk)
    start(
        p, choice or chosen(p, "chunk_gradients"),
        p.q, p.k, p.v, p.g, p.g_gamma, p.gk, do, s.ks, s.a, s.decay, before, after, dq, dk, dv, dg, dgk,
        p.scale, call.chunk, call.width, p.reverse, pieces(p), call.least,
    )  # fmt: skip
    return dq, dk, dv, dg, dgk


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: Some,
    g_gamma: Some,
    gk: Some,
    scale: float,
    initial_state: Some,
    reverse: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state) of a call that `serves` knows; as linear_attention_launch.forward."""
    p = Problem.of(q, k, v, g, g_gamma, gk, None, scale, reverse, None)
    s = scores(p)
    before, last = states(p, s.ks, p.v, s.decay, initial_state, reverse)
    return outputs(p, s, before), last


def backward(
    do: Some,
    dend: Some,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: Some,
    g_gamma: Some,
    gk: Some,
    scale: float,
    initial_state: Some,
    reverse: bool,
) -> list[torch.Tensor]:
    """As linear_attention_launch.backward: everything is computed again, nothing kept from the forward."""
    p = Problem.of(q, k, v, g, g_gamma, gk, None, scale, reverse, None)
    do = torch.zeros_like(p.v) if do is None else do.contiguous()
    s = scores(p)
    before, _ = states(p, s.ks, p.v, s.decay, initial_state, reverse)
    after, dstart = states(p, s.qs, do, s.decay, dend, not reverse)
    dq, dk, dv, dg, dgk = gradients(p, s, do, before, after)
    gates = (
        None if g is None else dg.to(g.dtype),
        None if g_gamma is None else dg.sum((0, 1)).to(g_gamma.dtype),
        dgk,
    )
    return [x for x in (dq, dk, dv, *gates, None if initial_state is None else dstart) if x is not None]
