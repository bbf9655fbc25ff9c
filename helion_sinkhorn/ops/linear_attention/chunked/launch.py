"""From tensors to the launches of chunked linear attention: o, and the gradients of what made it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.linear_attention.chunked import space
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.linear_attention.problem import WIDE, Problem
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, Tensors, launch
from helion_sinkhorn.runtime.wanted import Some, room_for

ROOM = "helion_sinkhorn.ops.linear_attention.chunked"


def facts(chosen: Chosen, call: ChunkCall, _: ChunkCall, values: int, *constants: Any) -> tuple[Any, ...]:
    """What a body takes after its tensors; the width of its tile of the values, if it has one, comes last."""
    columns = dict(chosen.choice.variant).get("columns")
    tile = () if columns is None else (columns, -(-values // columns))
    return *constants, *tile, chosen.reciprocal


KERNELS = {
    name: Kernel(
        name, f"{ROOM}.{body}:{name}", ChunkCall, *configs, facts, "tf32x3", frozenset({"splits"}),
        numbers=numbers,
    )
    # the number is the scale
    # configs: the default and the space
    for name, body, numbers, *configs in (
        ("linear_attention_chunk_scores", "kernels", 1, space.chunk_scores_default, space.chunk_scores_space),
        ("linear_attention_chunk_walk", "kernels", 0, space.chunk_walk_default, space.chunk_walk_space),
        (
            "linear_attention_chunk_gradients", "gradients", 1,
            space.chunk_gradients_default, space.chunk_gradients_space,
        ),
    )
}  # fmt: skip


def call_of(p: Problem) -> ChunkCall:
    return chunk_call(p.q.dtype, p.q.size(3), p.v.size(3), p.gates)


@functools.cache
def chunk_call(dtype: torch.dtype, dk: int, dv: int, gates: str) -> ChunkCall:
    return ChunkCall(str(dtype)[6:], dk, dv, gates)


def pieces(p: Problem) -> int:
    """The number of pieces with 8 bits that the sum of gates at one step has."""
    narrow = p.gk is None or p.gk.dtype == torch.bfloat16
    return 1 if narrow and p.g is None and p.g_gamma is None else 3


class Scratch(NamedTuple):
    """Q, K, D and A of chunked/kernels.py."""

    qs: torch.Tensor
    ks: torch.Tensor
    decay: torch.Tensor
    a: torch.Tensor


def empty(p: Problem, *shape: int, dtype: torch.dtype = WIDE) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=p.q.device)


def start(
    p: Problem, part: str, call: ChunkCall, tensors: Tensors, constants: tuple[object, ...],
    named: Choice | None,
) -> None:  # fmt: skip
    """One launch of a kernel, with the choice that the caller names if it is for this kernel."""
    name = f"linear_attention_chunk_{part}"
    choice = named if named is not None and named.kernel == name else None
    # the layouts of these tensors do not say which gates are given
    values = call, p.v.size(3), *constants
    launch(KERNELS[name], call, tensors, *values, batch=p.batch, choice=choice)


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
    tensors = p.q, p.k, p.g, p.g_gamma, p.gk, s.qs, s.ks, s.decay, s.a
    constants = p.scale, call.chunk, call.width, p.reverse, pieces(p), call.least
    start(p, "scores", call, tensors, constants, choice)
    return s


def walk(
    p: Problem, s: Scratch, do: Some = None, initial: Some = None, outputs: bool = True,
    states: bool = False, choice: Choice | None = None,
) -> tuple[Some, Some, torch.Tensor]:  # fmt: skip
    """(o, the states before every chunk, the last state), the first two if they are requested.

    With do it is the walk back: do stands for v, keys and queries are exchanged, and o is dv.  It begins with
    `initial`, or with zeros; the state of p is not read.
    """
    call = call_of(p)
    v, x, y, a = (p.v, s.qs, s.ks, s.a) if do is None else (do, s.ks, s.qs, s.a.mT)
    o, x, a = (torch.empty_like(v), x, a) if outputs else (None, None, None)
    before = empty(p, *s.decay.shape, v.size(3), dtype=y.dtype) if states else None
    last = p.new_state()
    # a state in a pool of all layers may have strides beyond 32-bit indices
    initial = None if initial is None else initial.contiguous()
    tensors = y, v, s.decay, x, a, initial, o, before, last
    start(p, "walk", call, tensors, (call.chunk, call.width, p.reverse == (do is None)), choice)
    return o, before, last


def gradients(
    p: Problem, decay: torch.Tensor, do: torch.Tensor, before: torch.Tensor, after: torch.Tensor,
    wanted: Sequence[bool] | None = None, choice: Choice | None = None,
) -> tuple[Some, ...]:  # fmt: skip
    """(dq, dk, dg (B, T, H) in float32 for g and g_gamma, dgk) from states and their gradients at chunks.

    Args:
        wanted: which gradients to compute; None for all.
    """
    call = call_of(p)
    of_q, of_k, of_steps, of_gk = (True, True, p.g is not None or p.g_gamma is not None, p.gk is not None)
    if wanted is not None:
        of_q, of_k, of_steps, of_gk = wanted
    dq, dk = room_for((p.q, p.k), (of_q, of_k))
    dg = empty(p, *p.q.shape[:3]) if of_steps else None
    dgk = torch.empty_like(p.gk) if of_gk else None
    tensors = p.q, p.k, p.v, p.g, p.g_gamma, p.gk, do, decay, before, after, dq, dk, dg, dgk
    constants = p.scale, call.chunk, call.width, p.reverse, pieces(p), call.least, call.least_gate
    start(p, "gradients", call, tensors, constants, choice)
    return dq, dk, dg, dgk


def forward(p: Problem, choice: Choice | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state), without gv and cu_seqlens; otherwise as recurrent.launch.forward."""
    p = p.contiguous()
    o, _, last = walk(p, scores(p, choice), None, p.initial_state, choice=choice)
    return o, last


def backward(
    do: Some, dend: Some, p: Problem, wanted: Sequence[bool], choice: Choice | None = None
) -> tuple[Some, ...]:
    """As in recurrent.launch.backward: everything is computed again, nothing kept from the forward."""
    of_q, of_k, of_v, of_g, of_gamma, of_gk, _, of_start = wanted
    of_states = of_q, of_k, of_g or of_gamma, of_gk
    p = p.contiguous()
    do = torch.zeros_like(p.v) if do is None else do.contiguous()
    s = scores(p, choice)
    dv, after, dstart = walk(p, s, do, dend, of_v, any(of_states), choice)
    dq = dk = dg = dgk = None
    if any(of_states):
        _, before, _ = walk(p, s, None, p.initial_state, False, True, choice)
        dq, dk, dg, dgk = gradients(p, s.decay, do, before, after, of_states, choice)
    return (
        dq, dk, dv, dg.to(p.g.dtype) if of_g else None,
        dg.sum((0, 1)).to(p.g_gamma.dtype) if of_gamma else None, dgk, None, dstart if of_start else None,
    )  # fmt: skip
