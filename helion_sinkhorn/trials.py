"""TRIALS: how each kernel is run by itself, by the tuner on a GPU and by the offline compiler on nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn import testing_dot_compress, testing_linear_attention
from helion_sinkhorn.kernels import (
    TUNED_EPS,
    Call,
    Choice,
    dot_compress_launch,
    launch,
    linear_attention_launch,
)
from helion_sinkhorn.kernels import linear_attention_chunked_launch as chunked_launch
from helion_sinkhorn.kernels.dot_compress_space import DotCall
from helion_sinkhorn.kernels.linear_attention import WalkCall
from helion_sinkhorn.kernels.linear_attention_chunked import ChunkCall
from helion_sinkhorn.testing import Case, worst
from helion_sinkhorn.testing_implicit import Stationarity
from helion_sinkhorn.workloads import (
    AttentionWorkload,
    DotWorkload,
    Workload,
    make_cotangents,
    make_logits,
)

Tensors = tuple[torch.Tensor, ...]
Programs = Iterator[tuple[str, Any]]
"""(kernel, its call), one for each kernel that a workload is served by."""
JUDGED = ("randn_1", "randn_3")
"""Logits on which an error is taken."""


@dataclass(frozen=True)
class Trial:
    """One row of TRIALS."""

    operands: Callable[[Any, int, str], Tensors]
    """(call, batch, device) -> what the kernel reads; of device "meta" only their layout is asked."""
    run: Callable[..., torch.Tensor | Tensors]
    """(call, choice, *operands, **options) -> what it writes, from `kernels.launch`."""
    error: Callable[[Any, Choice, str], float]
    """(call, choice, device) -> the largest error in units of its budget: above 1 the choice is wrong."""


@functools.singledispatch
def programs(workload: Any) -> Programs:
    """The kernels that serve a row of WORKLOADS, each with its call."""
    raise TypeError(f"no kernels are known to serve a {type(workload).__name__}")


def noise(device: str, dtype: str, *shapes: tuple[int, ...]) -> Tensors:
    """Standard normal tensors, the same for the same shapes."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    drawn = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    return tuple(t.to(getattr(torch, dtype)) for t in drawn)


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def few(call: Call) -> int:
    """Matrices that are enough to judge; a multiple of 16, as timed batches are: others compile anew."""
    return max(16, min(64, 4096 // (call.n * call.m)))


# -------------------------------------------------------------------------------------------- Sinkhorn


@programs.register
def _(workload: Workload) -> Programs:
    if workload.backward == "implicit":
        call = launch.implicit_call(workload.n, workload.m, workload.dtype, workload.n_iters)
        yield launch.implicit_kernel("auto", call), call
    else:
        call = launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)
        yield "sinkhorn_forward", call
        yield launch.backward_kernel(call), call


def one_matrix(call: Call, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.n, call.m))


def two_matrices(call: Call, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.n, call.m)] * 2)


def p_and_gradient(call: Call, batch: int, device: str) -> Tensors:
    x, dy = two_matrices(call, batch, device)
    return x.softmax(-1), dy


def run_forward(call: Call, choice: Choice, x: torch.Tensor, eps: float = TUNED_EPS) -> torch.Tensor:
    return launch.forward(x, call.n_iters, eps, call.form, call.first, x.dtype, choice)


def run_backward(
    call: Call, choice: Choice, x: torch.Tensor, dy: torch.Tensor, eps: float = TUNED_EPS
) -> torch.Tensor:
    return launch.backward(dy, x, call.n_iters, eps, call.form, call.first, choice)


def run_implicit(
    call: Call, choice: Choice, p: torch.Tensor, dy: torch.Tensor, system: str = "corrected"
) -> torch.Tensor:
    solver = choice.kernel.rsplit("_", 1)[1]
    return launch.implicit_backward(dy, p, call.n_iters, system, solver, p.dtype, choice)


def cases(call: Call) -> Iterator[Case]:
    for logits in JUDGED:
        yield Case(
            logits, call.n, call.m, call.n_iters, call.form, call.first, few(call), TUNED_EPS,
            getattr(torch, call.dtype),
        )  # fmt: skip


def forward_error(call: Call, choice: Choice, device: str) -> float:
    ratios = [case.judge(p=run_forward(call, choice, case.inputs(device)[0])) for case in cases(call)]
    return max(r["P"] for r in ratios)


def backward_error(call: Call, choice: Choice, device: str) -> float:
    ratios = [case.judge(dx=run_backward(call, choice, *case.inputs(device))) for case in cases(call)]
    return max(r["dX"] for r in ratios)


def implicit_error(call: Call, choice: Choice, device: str) -> float:
    """By the equations of stationarity at the same P, within what the solver can do (docs/math.md)."""
    ratios = []
    for logits in JUDGED:
        x = make_logits(logits, few(call), call.n, call.m)
        p, dy = x.softmax(-1).to(getattr(torch, call.dtype)), make_cotangents(x)
        equations = Stationarity(p, dy, "corrected")
        budget = equations.error_budget(choice.kernel.rsplit("_", 1)[1], p.dtype)
        ratios.append(worst(run_implicit(call, choice, p.to(device), dy.to(device)), equations.exact, budget))
    return max(ratios)


# ---------------------------------------------------------------------------------------- dot compress

JUDGED_ELEMENTS = 16
"""Elements whose error is taken; a multiple of 16, as for matrices."""


@programs.register
def _(workload: DotWorkload) -> Programs:
    call = dot_compress_launch.call_for(workload)
    for name in ("dot_compress_product", "dot_compress_apply", "dot_compress_expand"):
        yield name, call


def x_and_y(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.m, call.d), (batch, call.m, call.k))


def x_and_b(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.m, call.d), (batch, call.parts, call.d, call.k))


def gradients(call: DotCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.m, call.k), (batch, call.parts, call.d, call.k)] * 2)


def run_product(call: DotCall, choice: Choice, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    b = torch.empty((x.size(0), call.parts, call.d, call.k), dtype=x.dtype, device=x.device)
    dot_compress_launch.product(x, y, None, b, choice)
    return b


def run_apply(call: DotCall, choice: Choice, x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    out = torch.empty((x.size(0), call.m, call.k), dtype=x.dtype, device=x.device)
    dot_compress_launch.apply(x, b, out, choice)
    return out


def run_expand(
    call: DotCall, choice: Choice, grad: torch.Tensor, b: torch.Tensor, y: torch.Tensor, db: torch.Tensor
) -> torch.Tensor:
    dx = torch.empty((y.size(0), call.m, call.d), dtype=y.dtype, device=y.device)
    dot_compress_launch.expand(grad, y, b, db, dx, choice)
    return dx


def product_error(call: DotCall, choice: Choice, device: str) -> float:
    x, y = x_and_y(call, JUDGED_ELEMENTS, "cpu")
    found = run_product(call, choice, x.to(device), y.to(device)).double().sum(1)
    return worst_sum(found, [(x.mT, y)], x.dtype, call.parts)


def apply_error(call: DotCall, choice: Choice, device: str) -> float:
    x, b = x_and_b(call, JUDGED_ELEMENTS, "cpu")
    found = run_apply(call, choice, x.to(device), b.to(device))
    return worst_sum(found, [(x, b.double().sum(1))], x.dtype)


def expand_error(call: DotCall, choice: Choice, device: str) -> float:
    grad, b, y, db = gradients(call, JUDGED_ELEMENTS, "cpu")
    found = run_expand(call, choice, *(t.to(device) for t in (grad, b, y, db)))
    pairs = [(g, t.double().sum(1).mT) for g, t in ((grad, b), (y, db))]
    return worst_sum(found, pairs, y.dtype)


def worst_sum(found: torch.Tensor, pairs: list[Tensors], dtype: torch.dtype, parts: int = 1) -> float:
    """The largest error of a sum of products in units of its budget."""
    exact = testing_dot_compress.sum_of_products(pairs, dtype, parts)
    return worst(found, exact.value, exact.budget)


# ------------------------------------------------------------------------- recurrent linear attention

JUDGED_STEPS = 37
"""Some blocks of steps and a rest."""
STEPS = 1024
"""Of a timed walk: its time is proportional to them from some hundred on."""
HEADS = 16


@programs.register
def _(workload: AttentionWorkload) -> Programs:
    for call in linear_attention_launch.calls_of(workload):
        yield linear_attention_launch.KERNEL, call
    if (chunks := chunked_launch.call_for(workload)) is not None:
        for part in chunked_launch.PARTS:
            yield f"linear_attention_chunk_{part}", chunks


def walk_operands(call: WalkCall, batch: int, device: str) -> Tensors:
    """q, k, v, do, what a walk before this one left (float32), and the gates, each at most 0."""
    heads = min(batch, HEADS)
    dk, dv = ((-(-batch // heads), STEPS, heads, d) for d in (call.dk, call.dv))
    shapes = {"g": dk[:3], "g_gamma": dk[2:3], "gk": dk, "gv": dv}
    *vectors, dual = noise(device, call.dtype, dk, dk, dv, dv, dk if call.result == "dk" else dv)
    gates = noise(device, call.dtype, *[shapes[name] for name in call.gates.split()])
    return *vectors, dual.float(), *[gate.abs() / -8 for gate in gates]


def run_walk(
    call: WalkCall,
    choice: Choice,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    dual: torch.Tensor,
    *gates: torch.Tensor,
) -> torch.Tensor | Tensors:
    named = dict(zip(call.gates.split(), gates, strict=True))
    given = [named.get(name) for name in ("g", "g_gamma", "gk", "gv")]
    p = linear_attention_launch.Problem.of(q, k, v, *given, call.dk**-0.5, False, None)
    if call.result == "o":
        return linear_attention_launch.walk_o(p, None, None, None, choice)
    if call.result == "dq":
        return linear_attention_launch.walk_dq(p, do, None, None, choice)
    if call.result == "dk":
        found = linear_attention_launch.walk_dk(p, do, None, dual, None, choice)
    else:
        o = None if p.gv is None else dual
        found = linear_attention_launch.walk_dv(p, do, None, None, o, None, choice)
    return tuple(x for x in found if x is not None)


def walk_error(call: WalkCall, choice: Choice, device: str) -> float:
    """A walk by itself, behind the exact result of the one before."""
    workload = AttentionWorkload(
        "", 1, JUDGED_STEPS, 2, call.dk, call.dv, frozenset(), "", call.gates, getattr(torch, call.dtype)
    )
    case = testing_linear_attention.Case.of(workload)
    dual = case.exact["dq" if call.result == "dk" else "o"].float()
    vectors, gates = ([case.inputs[name] for name in names] for names in ("qkv", call.gates.split()))
    found = run_walk(call, choice, *[x.to(device) for x in (*vectors, case.do, dual, *gates)])
    names = {"dk": ("dk", "dgk" if "gk" in call.gates else "dg", "dg"), "dv": ("dv", "dgv")}
    results = found if isinstance(found, tuple) else (found,)
    named = dict(zip(names.get(call.result, (call.result,)), results, strict=False))
    judged = {name: x.view(case.exact[name].shape) for name, x in named.items() if name in case.exact}
    return max(case.judge(judged).values())


# ------------------------------------------------------------------------------ linear attention in chunks


def chunk_problem(call: ChunkCall, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: Tensors):
    named = dict(zip(call.gates.split(), gates, strict=True))
    given = [named.get(name) for name in ("g", "g_gamma", "gk")]
    return linear_attention_launch.Problem.of(q, k, v, *given, None, call.dk**-0.5, False, None)


def chunk_operands(call: ChunkCall, batch: int, device: str) -> Tensors:
    """q, k, v, do and the gates, each at most 0."""
    q, k, v, do, _, *gates = walk_operands(WalkCall("o", **vars(call)), batch, device)
    return q, k, v, do, *gates


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


def run_chunk_scores(
    call: ChunkCall,
    choice: Choice,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    do: torch.Tensor,
    *gates: torch.Tensor,
) -> Tensors:
    scratch = chunked_launch.scores(chunk_problem(call, q, k, v, gates), choice)
    return scratch.qs, scratch.ks, scratch.a, scratch.decay


def run_chunk_walk(call: ChunkCall, choice: Choice, *tensors: torch.Tensor) -> Tensors:
    x, y, a, decay, _, _, q, k, v, _, *gates = tensors
    p = chunk_problem(call, q, k, v, gates)
    o, _, last = chunked_launch.walk(p, decay, y, v, None, False, x, a, choice=choice)
    return o, last


def run_chunk_gradients(call: ChunkCall, choice: Choice, *tensors: torch.Tensor) -> Tensors:
    _, _, _, decay, before, after, q, k, v, do, *gates = tensors
    p = chunk_problem(call, q, k, v, gates)
    found = chunked_launch.gradients(p, decay, do, before, after, choice)
    return tuple(x for x in found if x is not None)


def chunk_error(call: ChunkCall, choice: Choice, device: str) -> float:
    """Of the whole operator with this choice for one of its kernels."""
    workload = AttentionWorkload(
        "", 1, call.chunk + 3, 2, call.dk, call.dv, frozenset(), "", call.gates, getattr(torch, call.dtype)
    )
    case = testing_linear_attention.Case.of(workload)
    results = case.to(device).run_module(chunked_launch, choice=choice)
    return max(case.judge(results, "chunked").values())


TRIALS = {
    "sinkhorn_forward": Trial(one_matrix, run_forward, forward_error),
    "sinkhorn_backward": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_backward_history": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_implicit_direct": Trial(p_and_gradient, run_implicit, implicit_error),
    "sinkhorn_implicit_cg": Trial(p_and_gradient, run_implicit, implicit_error),
    "dot_compress_product": Trial(x_and_y, run_product, product_error),
    "dot_compress_apply": Trial(x_and_b, run_apply, apply_error),
    "dot_compress_expand": Trial(gradients, run_expand, expand_error),
    "linear_attention_walk": Trial(walk_operands, run_walk, walk_error),
    "linear_attention_chunk_scores": Trial(chunk_operands, run_chunk_scores, chunk_error),
    "linear_attention_chunk_walk": Trial(chunk_scratch, run_chunk_walk, chunk_error),
    "linear_attention_chunk_gradients": Trial(chunk_scratch, run_chunk_gradients, chunk_error),
}
