"""Recurrent linear attention as the gate judges it: every result of both methods within its model's budget.

An element of the batch is a sequence, or a packing of sequences.  Results of the chunked kernels are named
"chunked o" and so on: their equations round elsewhere and have budgets of their own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import torch

from ci.gate import choices, gate
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.linear_attention.budget import Case, budgets_of
from helion_sinkhorn.lab.linear_attention.model import TENSORS, Errors, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.sinkhorn.parity import Peer, largest
from helion_sinkhorn.ops.linear_attention import eager as linear_attention_eager
from helion_sinkhorn.ops.linear_attention import reference
from helion_sinkhorn.runtime.launch import device_of

JUDGED = 2
"""Elements: each has thousands of entries, and gates that sum over all its steps."""
GATES = "dgk", "dgv", "dg", "dg_gamma"
WALKS = {
    "o": ("o", "end"),
    "dq": ("dq", *GATES),
    "dk": ("dk", *GATES),
    "dv": ("dv", "dinitial_state"),
}
BESIDE_AUTOGRAD = "dgk", "dgv", "dg"
"""Results with as many errors as parity compares."""
COPIES = (1.0, 2.0, 4.0)
"""Factors of the gradients of an element in the call that gives its dg_gamma, a sum over the batch: the
element is there once with each, so its result is 7 times that of the element alone, with the same rounding
errors, and no wrong subset of the batch sums to that."""
CHUNK_KERNELS = {
    "linear_attention_chunk_scores": ("o", "dv"),
    "linear_attention_chunk_walk": ("o", "end", "dv", "dinitial_state"),
    "linear_attention_chunk_gradients": ("dq", "dk", "dg", "dg_gamma", "dgk"),
}
"""The results in which an error of a walk, or of a kernel, shows."""
STATES = "end", "dinitial_state"


def methods(workload: AttentionWorkload) -> tuple[str, ...]:
    return ("recurrent", "chunked") if workload.chunks_serve else ("recurrent",)


def title(method: str, name: str) -> str:
    """The name of a result in tables."""
    return name if method == "recurrent" else f"{method} {name}"


def names(workload: AttentionWorkload) -> list[str]:
    """Names of the tensors of `inputs`, the gradients "do" and "dend" last."""
    own = [*"qkv", *[name for name in TENSORS if name in workload.gates.split()]]
    return [*own, "initial_state", "do", "dend"] if workload.states else [*own, "do"]


def inputs(workload: AttentionWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """`names` of every judged element, whatever `steps`; g_gamma is (B, H), the same in each."""
    drawn = [Case.of(workload, seed) for seed in range(JUDGED)]
    parts = []
    for name in names(workload):
        of = [getattr(c, name) if name in ("do", "dend") else c.inputs[name] for c in drawn]
        if name == "g_gamma":
            parts.append(torch.stack([of[0]] * JUDGED))
        elif name in ("initial_state", "dend") and workload.lengths:
            parts.append(torch.stack(of))
        else:
            parts.append(torch.cat([x[:1] for x in of]))
    return tuple(parts)


def case_of(workload: AttentionWorkload, *tensors: torch.Tensor) -> Case:
    """The call that computes these elements together: packings go one behind another."""
    named = dict(zip(names(workload), tensors, strict=True))
    if "g_gamma" in named:
        named["g_gamma"] = named["g_gamma"][0]
    if workload.lengths:
        lengths = torch.tensor((0, *workload.lengths * len(tensors[0])), device=tensors[0].device)
        named = {n: x if n == "g_gamma" else x.flatten(0, 1) for n, x in named.items()}
        named = {n: x if n in ("g_gamma", "initial_state", "dend") else x[None] for n, x in named.items()}
        named["cu_seqlens"] = lengths.cumsum(0).int()
    do, dend = named.pop("do"), named.pop("dend", None)
    return Case(named, do, dend, workload.scale, workload.reverse)


def copied(workload: AttentionWorkload, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One element as often as there are COPIES, its gradients times these: powers of two round nothing."""
    return [
        torch.cat([x * c for c in COPIES]) if name in ("do", "dend") else torch.cat([x] * len(COPIES))
        for name, x in zip(names(workload), tensors, strict=True)
    ]


def by_elements(workload: AttentionWorkload, results: Named) -> Named:
    """The results of `case_of`, an element each; what sums over elements is left out."""
    found = {name: x for name, x in results.items() if name != "dg_gamma"}
    if workload.lengths:
        sizes = dict.fromkeys(STATES, (-1, len(workload.lengths)))
        found = {
            n: (x if n in STATES else x[0]).unflatten(0, sizes.get(n, (-1, workload.steps)))
            for n, x in found.items()
        }
    return found


def joined(parts: list[Named]) -> Named:
    """The results of several elements from those of each."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def alone(workload: AttentionWorkload, results: Named) -> Named:
    """The results of one element, dg_gamma among them: that of its copies."""
    own = {"dg_gamma": sum(COPIES) * results["dg_gamma"][None]} if "dg_gamma" in results else {}
    return by_elements(workload, results) | own


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


def peer_of(exact: torch.Tensor, budget: torch.Tensor, found: torch.Tensor) -> Peer:
    """What autograd found in float32, relative to the budgets of rows; 4 roundoffs of a row tell nothing."""
    scale = budget.amax(-1, keepdim=True).expand_as(budget)
    row = exact.abs().amax(-1, keepdim=True)
    floor = ((4 * rounding.UNIT * row + rounding.half_ulp(exact, found.dtype)) / scale).amax((-2, -1))
    return Peer(scale, torch.maximum(largest(found, exact, scale), floor), floor)


def truths(workload: AttentionWorkload, *tensors: torch.Tensor) -> dict[str, gate.Truth]:
    """The specification in float64, with the budget of each method."""
    cases = [case_of(workload, *[x[b : b + 1] for x in tensors]) for b in range(len(tensors[0]))]
    exact = joined([alone(workload, c.exact) for c in cases])
    in_float32 = [c.cast(torch.float32).run(reference.recurrent_linear_attention) for c in cases]
    baseline = joined([alone(workload, results) for results in in_float32])
    found = {}
    for method in methods(workload):
        budgets = joined([alone(workload, budgets_of(c, method)) for c in cases])
        leaning = [
            joined([
                alone(workload, c.wide.evaluated(method, Systematic(
                    seed, generator=torch.Generator().manual_seed(seed), cuts=method == "chunked"
                )))
                for c in cases
            ])
            for seed in range(rounding.SAMPLES)
        ]  # fmt: skip
        for name, value in exact.items():
            dtype = torch.float32 if name in STATES else workload.dtype
            budget = budgets[name] + rounding.half_ulp(value, dtype)
            spread = gate.spread(value, budget, dtype)
            scale = value.abs().amax(tuple(range(1, value.dim())), keepdim=True).expand_as(value)
            # chunks of growing states take the gradients of gates as differences (`ChunkCall.least_gate`)
            compared = name in BESIDE_AUTOGRAD and (method == "recurrent" or workload.strength > 0)
            peer = peer_of(value, budget, baseline[name].to(dtype)) if compared else None
            lean = max(abs(gate.bias(x[name], value, spread)) for x in leaning)
            axes = together(workload, method, name)
            found[title(method, name)] = gate.Truth(
                value, budget, spread, scale, lean, len(cases), axes, dtype, peer
            )
    return found


def candidates(workload: AttentionWorkload, *tensors: torch.Tensor) -> list[gate.Candidate]:
    """Every kernel that takes this call, with each of its configs; on a CPU the CPU path."""
    if tensors[0].is_cuda:
        return kernels(workload, *tensors)
    own = functools.partial(computed, workload, linear_attention_eager)
    return [
        gate.Candidate("eager", name, {}, "", True, functools.partial(own, name, {}))
        for name in ("o", "end", *(f"d{name}" for name in case_of(workload, *tensors).leaves))
    ]


def kernels(workload: AttentionWorkload, *tensors: torch.Tensor) -> list[gate.Candidate]:
    """Each config of a walk or of a chunk kernel, with what is served of the others."""
    from helion_sinkhorn.ops.linear_attention.chunked import launch as chunked
    from helion_sinkhorn.ops.linear_attention.gates import launch as gates
    from helion_sinkhorn.ops.linear_attention.recurrent import launch as recurrent

    case = case_of(workload, *tensors)
    there = {"o", "end", *(f"d{name}" for name in case.leaves)}
    device = device_of(tensors[0])
    vectors = [case.inputs.get(name) for name in TENSORS[:-1]]
    rest = 1.0, workload.reverse, case.inputs.get("cu_seqlens")
    p = recurrent.Problem.fitting(*vectors, *rest)
    found = [
        ("recurrent", name, {"choices": {result: choice}}, choice, served)
        for result, of in WALKS.items()
        for choice, served in choices.choices(recurrent.KERNEL, p.call(result), p.batch, device)
        for name in of
    ]
    found += [
        ("recurrent", name, {"choices": {f"d{side}": choice}}, choice, served)
        for side in gates.sides(p.gates)
        for choice, served in choices.choices(gates.KERNEL, gates.call_of(p, side), p.batch, device)
        for name in (f"d{side}", "dg", "dg_gamma")
    ]
    if workload.chunks_serve:
        p = recurrent.Problem.of(*vectors, *rest)
        found += [
            ("chunked", name, {"choice": choice}, choice, served)
            for kernel, of in CHUNK_KERNELS.items()
            for choice, served in choices.choices(kernel, chunked.call_of(p), p.batch, device)
            for name in of
        ]
    modules = {"recurrent": recurrent, "chunked": chunked}
    return [
        choices.candidate(
            title(method, name), choice, served,
            functools.partial(computed, workload, modules[method], name, options),
        )
        for method, name, options, choice, served in found
        if name in there
    ]  # fmt: skip


def as_given(workload: AttentionWorkload, case: Case) -> Case:
    """The call as the operator has it."""
    do, dend = choices.given(workload.unused, do=case.do, dend=case.dend)
    return dataclasses.replace(case, do=do, dend=dend)


def computed(
    workload, module, name: str, options: Mapping[str, object], *tensors: torch.Tensor
) -> torch.Tensor:
    """One result of a module with `forward` and `backward`, an element each."""
    if name == "dg_gamma":
        # a sum over the batch, which no other element may change
        each = [copied(workload, [x[b : b + 1] for x in tensors]) for b in range(len(tensors[0]))]
        cases = [as_given(workload, case_of(workload, *one)) for one in each]
        return torch.stack([case.run_module(module, **options)[name] for case in cases])
    case = as_given(workload, case_of(workload, *tensors))
    run = case.run_forward if name in ("o", "end") else case.run_module
    return by_elements(workload, run(module, **options))[name]
