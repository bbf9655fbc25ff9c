"""From tensors to the launches of the gradients of gates: from the states that the walks kept."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.linear_attention.gates.space import gates_default, gates_space
from helion_sinkhorn.ops.linear_attention.problem import WIDE, Problem
from helion_sinkhorn.ops.linear_attention.recurrent.space import SPAN
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, Tensors, launch
from helion_sinkhorn.runtime.wanted import Some

KERNEL = "linear_attention_gates"
BODY = f"helion_sinkhorn.ops.linear_attention.gates.kernels:{KERNEL}"
KERNELS = {
    KERNEL: Kernel(
        KERNEL, BODY, ChunkCall, gates_default, gates_space,
        lambda chosen, call, _, *constants: (*constants, chosen.reciprocal),
        "tf32x3", frozenset({"splits"}), numbers=2,
    ),
}  # fmt: skip


WIDTH = 64
"""Columns of a tile of Dk or Dv; ptxas 12.8 miscompiles narrower tiles (docs/dev/helion.md)."""
OTHER = {"gk": "gv", "gv": "gk"}


def sides(gates: str) -> tuple[str, ...]:
    """The sides of a state whose decays have gradients; the last one computes those of g and g_gamma too."""
    there = tuple(side for side in ("gk", "gv") if side in gates.split())
    return there or (("gk",) if gates else ())


def wanted_sides(gates: str, wanted: Sequence[bool]) -> dict[str, tuple[bool, bool]]:
    """The sides with a gradient `wanted` of g, g_gamma, gk and gv: (of its own gate, of g and g_gamma)."""
    of_steps, own = any(wanted[:2]), dict(zip(("gk", "gv"), wanted[2:], strict=True))
    there = sides(gates)
    asked = {side: (own[side], of_steps and side == there[-1]) for side in there}
    return {side: both for side, both in asked.items() if any(both)}


def call_of(p: Problem, side: str) -> ChunkCall:
    """What the config of a side is chosen for."""
    return gates_call(p.q.dtype, *p.sides, p.gates, side)


@functools.cache
def gates_call(dtype: torch.dtype, dk: int, dv: int, gates: str, side: str) -> ChunkCall:
    """What the config of a side is chosen for; columns count as rows of the transposed state."""
    if side == "gv":
        names = [OTHER.get(name, name) for name in gates.split()]
        return ChunkCall(str(dtype)[6:], dv, dk, " ".join(sorted(names)))
    return ChunkCall(str(dtype)[6:], dk, dv, gates)


def rows_of_slots(p: Problem) -> Some:
    """(slots, 2): the first token and the number of steps of each kept state, where sequences are packed."""
    if p.cu_seqlens is None:
        return None
    ends = p.cu_seqlens.long()
    numbers = torch.arange(p.sequences, device=ends.device)
    slots = torch.arange(p.q.size(1) // SPAN + p.sequences, device=ends.device)
    firsts = ends[:-1] // SPAN + numbers
    n = (torch.searchsorted(firsts, slots, right=True) - 1).clamp(min=0)
    below = (slots - firsts[n]) * SPAN
    token = ends[n + 1] - 1 - below if p.reverse else ends[n] + below
    # a slot before the first sequence, which may begin after the first step, has no rows
    return torch.stack((token, torch.where(below < 0, 0, (ends.diff()[n] - below).clamp(0, SPAN))), 1)


def gates(
    p: Problem, do: torch.Tensor, states: torch.Tensor, dstates: torch.Tensor, side: str,
    wanted: tuple[bool, bool], choice: Choice | None = None,
) -> tuple[Some, Some]:  # fmt: skip
    """(the gradient of the gate of a side, dg (B T, H) in float32), each if it is wanted.

    The states and their gradients are what the walks of dq and dk kept.
    """
    q, k, v, gk, gv = p.q, p.k, p.v, p.gk, p.gv
    if side == "gv":
        q, k, v, do, gk, gv = do, v, k, q, gv, gk
        states, dstates = states.mT, dstates.mT
    of_gate, of_steps = wanted
    dgk = p.new_like(gk) if of_gate else None
    tiles, blocks = (-(-x.size(3) // WIDTH) for x in (q, v))
    dg = None
    if of_steps:
        shape = tiles, *p.q.flatten(0, 1).shape[:2]
        allocated = torch.empty if p.cu_seqlens is None else torch.zeros
        dg = allocated(shape, dtype=WIDE, device=q.device)
    own = [x for x in (p.g, p.g_gamma, gk) if x is not None]
    every = own if gv is None else [*own, gv]
    fine = any(x.dtype != torch.bfloat16 for x in (q, *every))
    single = not fine and len(own) == 1
    constants = p.q.size(1), p.scale, SPAN, p.reverse, fine, single, WIDTH, tiles, blocks
    tensors = q, k, v, do, p.g, p.g_gamma, gk, gv, dgk, states, dstates, dg, rows_of_slots(p)
    call = call_of(p, side)

    def views(chosen: Chosen) -> Tensors:
        """Batch and time are one axis of tokens."""
        return *[x if x is None or x.dim() < 3 else x.flatten(0, 1) for x in tensors[:9]], *tensors[9:]

    # the layouts of these tensors do not say the dtypes and gates of the walk
    launch(KERNELS[KERNEL], call, tensors, call, *constants, batch=p.batch, choice=choice, views=views)
    return dgk, None if dg is None else dg.sum(0)
