"""From tensors to the walks of recurrent linear attention: o, and the gradients of all arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.configs import store
from helion_sinkhorn.ops.linear_attention.gates.launch import gates, wanted_sides
from helion_sinkhorn.ops.linear_attention.problem import Problem, pad_to, unpad
from helion_sinkhorn.ops.linear_attention.recurrent.space import (
    ROLES,
    SPAN,
    UNKEPT_SPAN,
    WalkCall,
    walk_default,
    walk_space,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import (
    NO_CHOICES,
    Choices,
    Chosen,
    launch_chosen,
    launch_kept,
    layout_key,
    run_and_keep,
)
from helion_sinkhorn.runtime.space import largest_run
from helion_sinkhorn.runtime.wanted import Some, only

KERNEL = "linear_attention_walk"
BODY = f"helion_sinkhorn.ops.linear_attention.recurrent.kernels:{KERNEL}"


def walk_facts(chosen: Chosen, call: WalkCall, vectors: torch.Tensor, *values: Any) -> tuple[Any, ...]:
    """What the body takes after its tensors; `vectors` is a tensor of the Dk side as the body takes it."""
    sequences, steps, scale, span, backwards, late = values
    count = dict(chosen.choice.variant)["count"]
    together = steps_together(vectors, chosen, count)
    # a gradient is launched with or without states to keep, and has the same bits; o is always launched
    # alike, and without a gate there is one product to fuse
    how = chosen.reciprocal if call.gates and call.result != "o" else None
    return sequences, steps, scale, count, span, backwards, late, together, sums_in_order(chosen), how


KERNELS = {KERNEL: Kernel(KERNEL, BODY, WalkCall, walk_default, walk_space, walk_facts, numbers=3)}


def split(x: Some, run: int) -> Some:
    """(B, T, H, D) as (tokens, H, D / run, run)."""
    return None if x is None else x.flatten(0, 1).unflatten(-1, (-1, run))


def in_words(x: Some) -> Some:
    """Vectors of the Dk side, with bfloat16 entries as 32-bit words of two where the layout permits.

    Threads exchange words in half the accesses to shared memory.  With 16-bit entries Triton 3.6 makes four
    times as many accesses: 272 in eight steps, against 80 under 3.9 (dk, 64 x 128, compiled for sm_90).
    """
    if x is None or x.dtype != torch.bfloat16 or x.data_ptr() % 4 or x.size(-1) % 2:
        return x
    *outer, inner = x.stride()
    return x if inner != 1 or any(stride % 2 for stride in outer) else x.view(torch.int32)


def steps_together(vectors: torch.Tensor, chosen: Chosen, count: int) -> int:
    """How many of `count` steps one load of the Dk side takes, so that each thread loads one number.

    Triton considers a load of fewer numbers than threads cheap: each thread then loads all that it needs
    itself, which in a walk takes up to 2.5 times as long as an exchange through shared memory.
    """
    threads = dict(chosen.choice.config).get("num_warps", 4) * chosen.device.warp_size
    return math.gcd(count, max(1, threads // (vectors.size(2) * vectors.size(3))))


def split_state(x: Some, transposed: bool, rk: int, rv: int) -> Some:
    """(N, H, Dk, Dv) as the (N, H, ck, rk, cv, rv) of a walk."""
    if x is None:
        return None
    return (x.mT if transposed else x).unflatten(-1, (-1, rv)).unflatten(-3, (-1, rk))


def sums_in_order(chosen: Chosen) -> bool:
    """Whether a thread's sums need a prescribed order; up to Triton 3.7 they have it by default."""
    return chosen.device.vendor == "nvidia" and not chosen.interpret and store.triton_version() >= (3, 8)


def walk(
    p: Problem, result: str, do: Some = None, start: Some = None, end: Some = None, states: Some = None,
    choice: Choice | None = None,
) -> torch.Tensor:  # fmt: skip
    """One launch: o, dq, dk or dv, as `result` says.

    It begins with `start`, for dk and dv the gradient of the last state, and writes its last state to `end`.
    `states` receives h before every SPAN steps, or for dk its gradient after every SPAN steps.
    """
    role, call = ROLES[result], p.call(result)
    out = p.new_like(p.q if role.transposed else p.v)
    named = {"q": p.q, "k": p.k, "v": p.v, "do": do}
    q, k, v = [named[name] for name in role.operands]
    gk, gv = (p.gv, p.gk) if role.transposed else (p.gk, p.gv)
    if start is not None:
        # it is loaded as rows of the kept side, so a transposed state is copied once before all steps
        start = (start.mT if role.transposed else start).contiguous()
    tensors = q, k, v, out, p.g, p.g_gamma, gk, gv, start, end, states, p.cu_seqlens
    span = UNKEPT_SPAN if states is None else SPAN
    values = p.sequences, p.q.size(1), p.scale, span, p.reverse != role.late, role.late

    def make(chosen: Chosen) -> None:
        # the config decides how a vector is split, and so whether its entries are read as words
        key = chosen.choice, result, values, layout_key(*tensors)
        if launch_kept(key, *tensors):
            return
        variant = dict(chosen.choice.variant)
        rk, rv = largest_run(call.summed, variant["rk"]), largest_run(call.kept, variant["rv"])
        last, kept = [split_state(x, role.transposed, rk, rv) for x in (end, states)]
        views = (
            in_words(split(q, rk)), in_words(split(k, rk)), split(v, rv), out.view(-1, rv),
            None if p.g is None else p.g.flatten(0, 1), p.g_gamma, in_words(split(gk, rk)), split(gv, rv),
            None if start is None else start.view(-1, rv), last, kept, p.cu_seqlens,
        )  # fmt: skip
        own = KERNELS[KERNEL].after_tensors(chosen, call, views[0], *values)
        run_and_keep(chosen, views, own, tensors, key)

    launch_chosen(KERNELS[KERNEL], call, p.batch, p.q, make, choice)
    return out


def forward(p: Problem, choices: Choices = NO_CHOICES) -> tuple[torch.Tensor, torch.Tensor]:
    """(o, last state); choices are by the result of a walk."""
    dk, dv = p.sides
    p = p.fitting()
    end = p.new_state()
    o = walk(p, "o", start=p.initial_state, end=end, choice=choices.get("o"))
    return unpad(o, dv), unpad(end, dk, dv)


def backward(
    do: Some, dend: Some, p: Problem, wanted: Sequence[bool], choices: Choices = NO_CHOICES
) -> tuple[Some, ...]:
    """Gradients of q, k, v, g, g_gamma, gk, gv and initial_state, None for each that is not wanted.

    A walk whose result is not wanted still runs if the gradients of gates need the states that it keeps.
    """
    of_q, of_k, of_v, *of_gates, of_start = wanted
    of_g, of_gamma = of_gates[:2]
    dk_size, dv_size = p.sides
    p = p.fitting()
    do = torch.zeros_like(p.v) if do is None else pad_to(do, p.sides[1]).contiguous()
    dend = pad_to(dend, *p.sides)
    states, dstates = (p.kept_states(), p.kept_states()) if any(of_gates) else (None, None)
    dq = dk = dv = None
    if of_q or any(of_gates):
        dq = walk(p, "dq", do, p.initial_state, states=states, choice=choices.get("dq"))
    if of_k or any(of_gates):
        dk = walk(p, "dk", do, dend, states=dstates, choice=choices.get("dk"))
    dstart = p.new_state() if of_start else None
    if of_v or of_start:
        dv = walk(p, "dv", do, dend, dstart, choice=choices.get("dv"))
    dgates, dg = {}, None
    for side, both in wanted_sides(p.gates, of_gates).items():
        # the last side computes those of g and g_gamma
        dgates[side], dg = gates(p, do, states, dstates, side, both, choices.get(f"d{side}"))
    made = (
        unpad(dq, dk_size),
        unpad(dk, dk_size),
        unpad(dv, dv_size),
        dg.view(p.g.shape).to(p.g.dtype) if of_g else None,
        dg.sum(0).to(p.g_gamma.dtype) if of_gamma else None,
        unpad(dgates.get("gk"), dk_size),
        unpad(dgates.get("gv"), dv_size),
        unpad(dstart, dk_size, dv_size),
    )
    return only(made, wanted)
