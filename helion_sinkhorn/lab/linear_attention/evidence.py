"""EVIDENCE of recurrent linear attention: every result of both methods within its model's budget.

Results of the chunked kernels are named "chunked o" and so on: their equations round elsewhere and have
budgets of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch

from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.evidence import Choices, Evidence, Results, given
from helion_sinkhorn.lab.linear_attention import trials
from helion_sinkhorn.lab.linear_attention.budget import (
    STATES,
    Case,
    alone,
    budgets_of,
    case_of,
    computed,
    inputs,
    joined,
    one_by_one,
)
from helion_sinkhorn.lab.linear_attention.model import TENSORS, Errors, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.truth import Peer, Truth, bias, largest_error, spread
from helion_sinkhorn.ops.linear_attention import eager, reference
from helion_sinkhorn.ops.linear_attention.api import recurrent_linear_attention
from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
from helion_sinkhorn.ops.linear_attention.gates import launch as gates
from helion_sinkhorn.ops.linear_attention.problem import padded_side
from helion_sinkhorn.ops.linear_attention.recurrent import launch as recurrent
from helion_sinkhorn.ops.linear_attention.recurrent.space import ROLES, WalkCall
from helion_sinkhorn.runtime.checks import check_option

CHUNKED = "chunked "
VALUES = "o", "end"
OF_GATES = "dgk", "dgv", "dg", "dg_gamma"
BESIDE_AUTOGRAD = "dgk", "dgv", "dg"
"""Results with as many errors as parity compares."""
COMPUTES = {
    "o": VALUES,
    "dq": ("dq", *OF_GATES),
    "dk": ("dk", *OF_GATES),
    "dv": ("dv", "dinitial_state"),
    "dgk": ("dgk", "dg", "dg_gamma"),
    "dgv": ("dgv", "dg", "dg_gamma"),
    **{
        f"linear_attention_chunk_{part}": tuple(CHUNKED + name for name in of.split())
        for part, of in (
            ("scores", "o dv"), ("walk", "o end dv dinitial_state"), ("gradients", "dq dk dg dg_gamma dgk"),
        )
    },
}  # fmt: skip
"""Walks are named by the result of each, gates by the gradient of a side."""


def parts(workload: AttentionWorkload) -> Iterator[tuple[str, str, Any]]:
    dtype, padded = str(workload.dtype)[6:], (padded_side(workload.dk), padded_side(workload.dv))
    for result in ROLES:
        yield result, recurrent.KERNEL, WalkCall(result, dtype, *padded, workload.gates)
    for side in gates.sides(workload.gates):
        call = gates.gates_call(workload.dtype, *padded, workload.gates, side)
        yield f"d{side}", gates.KERNEL, call
    if workload.chunks_serve:
        call = chunked.chunk_call(workload.dtype, workload.dk, workload.dv, workload.gates)
        yield from (("", kernel, call) for kernel in chunked.KERNELS)


def kernel_calls(workload: AttentionWorkload) -> Iterator[tuple[str, Any]]:
    return ((kernel, call) for _, kernel, call in parts(workload))


def methods(workload: AttentionWorkload) -> tuple[str, ...]:
    return ("recurrent", "chunked") if workload.chunks_serve else ("recurrent",)


def title(method: str, name: str) -> str:
    """The name of a result in tables."""
    return name if method == "recurrent" else CHUNKED + name


def of_walks(workload: AttentionWorkload) -> list[str]:
    """The results of a workload by one method."""
    own = (*"qkv", *workload.gates.split(), *(["initial_state"] if workload.states else []))
    return [*VALUES, *(f"d{name}" for name in TENSORS if name in own)]


def results(workload: AttentionWorkload) -> list[str]:
    return [title(method, name) for method in methods(workload) for name in of_walks(workload)]


def together(workload: AttentionWorkload, method: str, name: str) -> tuple[int, ...]:
    """Axes along which errors go together: a step's error stays in the state, for a row or column of it.

    What chunks round, the scores first, reaches all columns of a result; its steps round anew.  So does q_t
    k_t, which is all that a state has to it that forgets at once.
    """
    vector = name in ("o", "dq", "dk", "dv")
    if name in STATES or (method == "chunked" and vector):
        return (-1,)
    return (1, -1) if vector and workload.strength > 1 else (1,)


@dataclasses.dataclass(frozen=True)
class Systematic(Errors):
    """Exponentials wrong by their bound to one side, with `cuts` sums cut toward zero; the rest is even."""

    cuts: bool = False

    def __call__(self, x, size=1.0):
        return x

    def exp(self, w, count=1):
        side = torch.randint(0, 2, (1,), generator=self.generator).item() * 2 - 1
        return w.exp() * (1 + side * self.EXP * self.unit)

    def running(self, terms, count):
        # a matrix unit adds at least 8 terms at a time, up to three products of parts each, and cuts a unit
        return terms * (1 - 0.75 * count * self.unit) if self.cuts else terms


def one_sided(case: Case, method: str, seed: int) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return case.wide.evaluated(method, Systematic(seed, generator=generator, cuts=method == "chunked"))


def peer_of(exact: torch.Tensor, budget: torch.Tensor, baseline: torch.Tensor) -> Peer:
    """What autograd found in float32, relative to the budgets of rows; 4 roundoffs of a row tell nothing."""
    scale = budget.amax(-1, keepdim=True).expand_as(budget)
    row = exact.abs().amax(-1, keepdim=True)
    floor = ((4 * rounding.UNIT * row + rounding.half_ulp(exact, baseline.dtype)) / scale).amax((-2, -1))
    return Peer(scale, torch.maximum(largest_error(baseline, exact, scale), floor), floor)


def truths(workload: AttentionWorkload, *tensors: torch.Tensor) -> dict[str, Truth]:
    """The specification in float64, with the budget of each method."""
    cases = [case_of(workload, *one) for one in one_by_one(tensors)]

    def of_all(compute: Callable[[Case], Named]) -> Named:
        return joined([alone(workload, compute(case)) for case in cases])

    exact = of_all(lambda case: case.exact)
    baseline = of_all(lambda case: case.cast(torch.float32).run(reference.recurrent_linear_attention))
    by_title = {}
    for method in methods(workload):
        budgets = of_all(functools.partial(budgets_of, method=method))
        leaning = [
            of_all(functools.partial(one_sided, method=method, seed=seed)) for seed in range(rounding.SAMPLES)
        ]
        for name, value in exact.items():
            dtype = torch.float32 if name in STATES else workload.dtype
            budget = budgets[name] + rounding.half_ulp(value, dtype)
            deviation = spread(value, budget, dtype)
            scale = value.abs().amax(tuple(range(1, value.dim())), keepdim=True).expand_as(value)
            # chunks of growing states take the gradients of gates as differences (`ChunkCall.least_gate`)
            compared = name in BESIDE_AUTOGRAD and (method == "recurrent" or workload.strength > 0)
            peer = peer_of(value, budget, baseline[name].to(dtype)) if compared else None
            lean = max(abs(bias(x[name], value, deviation)) for x in leaning)
            axes = together(workload, method, name)
            by_title[title(method, name)] = Truth(
                value, budget, deviation, scale, lean, len(cases), axes, dtype, peer
            )
    return by_title


def run(
    workload: AttentionWorkload, choices: Choices | None, of: Collection[str], *tensors: torch.Tensor
) -> Results:
    """The results of each method by a call; the path of a CPU has those of one."""
    module, chosen = (eager, {}) if choices is None else (recurrent, {"choices": choices})
    of_chunks = (choice for choice in (choices or {}).values() if choice.kernel in chunked.KERNELS)
    by_title = {}
    for method, call in (
        ("recurrent", functools.partial(called, workload, module, chosen)),
        ("chunked", functools.partial(called, workload, chunked, {"choice": next(of_chunks, None)})),
    ):
        wanted = [name for name in of_walks(workload) if title(method, name) in of]
        compute = functools.partial(call, {*wanted} <= {*VALUES})
        results = computed(workload, compute, wanted, tensors)
        by_title |= {title(method, name): x for name, x in results.items()}
    return {name: by_title[name] for name in of}


def called(
    workload: AttentionWorkload, module: ModuleType, chosen: Mapping[str, Any], forward: bool, case: Case
) -> Named:
    """A call of a module with `forward` and `backward`, or its forward alone."""
    do, dend = given(workload.unused, do=case.do, dend=case.dend)
    case = dataclasses.replace(case, do=do, dend=dend)
    return case.run_forward(module, **chosen) if forward else case.run_module(module, **chosen)


def call_public(workload: AttentionWorkload, empty: Callable[..., torch.Tensor]) -> None:
    dtype, tokens = workload.dtype, (workload.sequences, workload.steps, workload.heads)
    keys, values = (*tokens, workload.dk), (*tokens, workload.dv)
    shapes = {"g": tokens, "g_gamma": tokens[2:], "gk": keys, "gv": values}
    for gate in workload.gates.split():
        check_option("gates", gate, shapes)
    vectors = [empty(*shape, dtype=dtype) for shape in (keys, keys, values)]
    named = {gate: empty(*shapes[gate], dtype=dtype) for gate in workload.gates.split()}
    recurrent_linear_attention(*vectors, **named, reverse=workload.reverse, implementation="helion")


EVIDENCE = Evidence(
    "linear_attention",
    AttentionWorkload,
    {**recurrent.KERNELS, **gates.KERNELS, **chunked.KERNELS},
    COMPUTES,
    kernel_calls,
    trials.of_call,
    results,
    inputs,
    truths,
    run,
    call_public,
    parts=parts,
    by_eager=of_walks,
    batch=lambda workload, elements: elements * (len(workload.lengths) or 1) * workload.heads,
    alone=trials.ALONE,
    errors=trials.ERRORS,
    # tested on few steps of few heads, for which Helion and Triton make other programs
    judged_apart=frozenset(trials.ALONE),
    call=trials.run_call,
)
