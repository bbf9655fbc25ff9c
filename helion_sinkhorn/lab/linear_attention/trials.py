"""The walks and the chunk kernels of recurrent linear attention by themselves, for the tuner."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Tensors
from helion_sinkhorn.lab.linear_attention.budget import Case
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.ops.linear_attention.api import CHUNKED_DTYPES, CHUNKED_STEPS
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
from helion_sinkhorn.ops.linear_attention.chunked.space import ChunkCall
from helion_sinkhorn.ops.linear_attention.gates import launch as gates_launch
from helion_sinkhorn.ops.linear_attention.problem import Problem
from helion_sinkhorn.ops.linear_attention.recurrent import launch as recurrent
from helion_sinkhorn.ops.linear_attention.recurrent.space import SPAN, WalkCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_STEPS = 37
"""37 = 4 unrolled blocks of 8 steps and 5 more."""
STEPS = 1024
"""Steps of a timed walk: from some hundred on its time is proportional to them."""
HEADS = 16


def walk_operands(call: WalkCall, batch: int, device: str) -> Tensors:
    """q, k, v, do and the gates, each at most 0."""
    heads = min(batch, HEADS)
    dk, dv = ((-(-batch // heads), STEPS, heads, d) for d in (call.dk, call.dv))
    shapes = {"g": dk[:3], "g_gamma": dk[2:3], "gk": dk, "gv": dv}
    vectors = noise(device, call.dtype, dk, dk, dv, dv)
    gates = noise(device, call.dtype, *[shapes[name] for name in call.gates.split()])
    return *vectors, *[gate.abs() / -8 for gate in gates]


def run_walk(
    call: WalkCall, choice: Choice, *tensors, reverse: bool = False, states: bool = False, offsets: str = ""
) -> Tensors:
    """A walk without states, or from zeros; with offsets, the name of their dtype, sequences are packed."""
    p, do = problem(call, tensors, reverse, offsets)
    before, after = (p.new_state().zero_() if states else None for _ in range(2))
    if call.result in ("o", "dv"):
        return (recurrent.walk(p, call.result, do, before, after, choice=choice),)
    kept = p.kept_states() if call.gates else None
    gradient = recurrent.walk(p, call.result, do, before, states=kept, choice=choice)
    return gradient, *(() if kept is None else (kept,))


def packed(x: torch.Tensor) -> torch.Tensor:
    """All sequences one after another."""
    return x.flatten(0, 1).unsqueeze(0)


def problem(
    call: WalkCall | ChunkCall, tensors: Sequence[torch.Tensor], reverse: bool = False, offsets: str = ""
) -> tuple[Problem, torch.Tensor]:
    """The call of q, k, v, do and the gates, and do; with offsets, the name of their dtype, sequences are
    packed."""
    q, k, v, do, *gates = tensors
    cu_seqlens = None
    if offsets:
        sequences, steps = q.shape[:2]
        ends = torch.arange(sequences + 1, dtype=getattr(torch, offsets), device=q.device)
        cu_seqlens = ends * steps
        q, k, v, do = map(packed, (q, k, v, do))
        gates = [x if x.dim() == 1 else packed(x) for x in gates]
    named = dict(zip(call.gates.split(), gates, strict=True))
    given = [named.get(name) for name in ("g", "g_gamma", "gk", "gv")]
    p = Problem(q, k, v, *given, call.dk**-0.5, reverse=reverse, cu_seqlens=cu_seqlens)
    return p.contiguous(), do


def gates_operands(call: ChunkCall, batch: int, device: str) -> Tensors:
    """The states that two walks keep, q, k, v, do and the gates, each at most 0."""
    operands = chunk_operands(call, batch, device)
    q, _, v, _ = operands[:4]
    slots = q.size(0) * -(-q.size(1) // SPAN)
    kept = slots, q.size(2), call.dk, v.size(3)
    return *noise(device, "float32", kept, kept), *operands


def run_gates(
    call: ChunkCall, choice: Choice, before, after, *tensors, reverse: bool = False, offsets: str = ""
) -> Tensors:
    """The gradients of gates of a state's rows, which are the columns of a transposed state."""
    p, do = problem(call, tensors, reverse, offsets)
    if offsets:
        before, after = p.kept_states(), p.kept_states()
    wanted = p.gk is not None, p.g is not None or p.g_gamma is not None
    gradients = gates_launch.gates(p, do, before, after, "gk", wanted, choice)
    return tuple(x for x in gradients if x is not None)


def chunk_operands(call: ChunkCall, batch: int, device: str) -> Tensors:
    """q, k, v, do and the gates, each at most 0."""
    return walk_operands(WalkCall("o", **vars(call)), batch, device)


def chunk_scratch(call: ChunkCall, batch: int, device: str) -> Tensors:
    """`chunk_operands`, two operands of a walk, A, D and two states for every chunk."""
    operands = chunk_operands(call, batch, device)
    several, steps, heads, _ = operands[0].shape
    chunks = several, heads, steps // call.chunk
    rows, scores = (*chunks, call.chunk, call.width), (*chunks, call.chunk, call.chunk)
    states = *chunks, call.width, call.dv
    *scratch, d, before, after = noise(
        device, call.operand, rows, rows, scores, (*chunks, call.width), states, states
    )
    return *scratch, d.float().sigmoid(), before, after, *operands


def run_chunk_scores(call: ChunkCall, choice: Choice, *tensors: torch.Tensor) -> Tensors:
    p, _ = problem(call, tensors)
    scratch = chunked.scores(p, choice)
    return scratch.qs, scratch.ks, scratch.a, scratch.decay


def run_chunk_walk(call: ChunkCall, choice: Choice, *tensors: torch.Tensor) -> Tensors:
    x, y, a, decay, _, _, *given = tensors
    p, _ = problem(call, given)
    o, _, last = chunked.walk(p, chunked.Scratch(x, y, decay, a), choice=choice)
    return o, last


def run_chunk_gradients(call: ChunkCall, choice: Choice, *tensors: torch.Tensor) -> Tensors:
    _, _, _, decay, before, after, *given = tensors
    p, do = problem(call, given)
    gradients = chunked.gradients(p, decay, do, before, after, choice=choice)
    return tuple(x for x in gradients if x is not None)


def of_call(kernel: str, call: WalkCall | ChunkCall, states: int) -> AttentionWorkload:
    """A call of few steps and two heads."""
    steps = {recurrent.KERNEL: JUDGED_STEPS, gates_launch.KERNEL: SPAN + 3}.get(kernel)
    shape = -(-states // 2), steps or call.chunk + 3, 2, call.dk, call.dv
    dtype = getattr(torch, call.dtype)
    return AttentionWorkload("tried", *shape, frozenset(), "a trial", call.gates, dtype)


def error(call: WalkCall | ChunkCall, choice: Choice, device: str) -> float:
    """The error of a walk by itself, or of the whole operator with this choice for another kernel."""
    case = Case.of(of_call(choice.kernel, call, 2))
    there = case.to(device)
    if choice.kernel == recurrent.KERNEL:
        vectors, gates = ([there.inputs[name] for name in names] for names in ("qkv", call.gates.split()))
        result, *_ = run_walk(call, choice, *vectors, there.do, *gates)
        return max(case.judge({call.result: result}).values())
    if choice.kernel == gates_launch.KERNEL:
        return max(case.judge(there.run_module(recurrent, choices={"dgk": choice})).values())
    return max(case.judge(there.run_module(chunked, choice=choice), "chunked").values())


def run_call(workload: AttentionWorkload, device: str) -> None:
    """The launches of a call and its gradient by the method that "auto" takes."""
    case = Case(*workload.make_inputs(device=device), workload.scale, workload.reverse)
    gains = workload.dtype in CHUNKED_DTYPES and workload.steps >= CHUNKED_STEPS
    case.run_module(chunked if gains and workload.chunks_serve else recurrent)


ALONE = {
    recurrent.KERNEL: Alone(walk_operands, run_walk),
    gates_launch.KERNEL: Alone(gates_operands, run_gates),
    "linear_attention_chunk_scores": Alone(chunk_operands, run_chunk_scores),
    "linear_attention_chunk_walk": Alone(chunk_scratch, run_chunk_walk),
    "linear_attention_chunk_gradients": Alone(chunk_scratch, run_chunk_gradients),
}
ERRORS = dict.fromkeys(ALONE, error)
