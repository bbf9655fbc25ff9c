"""The truth and the error budget of recurrent linear attention, for tests, tuner, gate and tritonbench.

`step_by_step` and `in_chunks` are the equations of the two methods, with a call wherever the kernels round.
In float64, with `Errors` as calls, they give the budget: five standard deviations of random errors, each of
the size of its bound (docs/dev/linear_attention.md, Rounding).  In float32, with the arithmetic of a machine
as calls, they are the emulations of ci/operators/linear_attention/steps.py.

Elements of a batch of calls, a sequence each or a packing of sequences, are computed by one call, packings
one after another.  Only the gradient of g_gamma, a sum over the batch, belongs to no element: for an element
it comes from a call on copies of it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.linear_attention.model import (
    CHUNK,
    CHUNKS,
    TENSORS,
    UNDERFLOW,
    Errors,
    Named,
    evaluated,
    in_chunks,
    step_by_step,
)
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload
from helion_sinkhorn.lab.rounding import SAMPLES, SIGMAS, half_ulp, worst
from helion_sinkhorn.ops.linear_attention import reference
from helion_sinkhorn.ops.linear_attention.problem import Problem
from helion_sinkhorn.runtime.wanted import all_of

JUDGED = 2
"""The number of tested elements; each has thousands of entries, and gates that sum over all its steps."""
COPIES = (1.0, 2.0, 4.0)
"""Factors of the gradients of an element in the call that gives its dg_gamma, a sum over the batch: the
element is there once with each, so its result is 7 times that of the element alone, with the same rounding
errors, and no wrong subset of the batch sums to that."""
STATES = "end", "dinitial_state"


@dataclass(frozen=True, eq=False)
class Case:
    """One set of inputs with its truth and budgets, on which every implementation is tested."""

    inputs: Named
    """Tensor arguments by name."""
    do: torch.Tensor
    dend: torch.Tensor | None = None
    """Gradient of the last state."""
    scale: float | None = None
    reverse: bool = False

    @classmethod
    def of(cls, workload: AttentionWorkload, seed: int = 0) -> Case:
        return cls(*workload.make_inputs(seed), scale=workload.scale, reverse=workload.reverse)

    @property
    def leaves(self) -> Named:
        """The arguments that have gradients, in the order in which operators return these."""
        return {name: self.inputs[name] for name in TENSORS if name in self.inputs}

    def cast(self, dtype: torch.dtype) -> Case:
        """The case in another dtype, with the scale given explicitly."""
        inputs = {name: x.detach().to(dtype) for name, x in self.leaves.items()}
        offsets = {name: x for name, x in self.inputs.items() if name not in inputs}
        dend = None if self.dend is None else self.dend.to(dtype)
        scale = self.inputs["q"].size(-1) ** -0.5 if self.scale is None else self.scale
        return Case(inputs | offsets, self.do.to(dtype), dend, scale, self.reverse)

    @functools.cached_property
    def wide(self) -> Case:
        """The case in float64."""
        return self.cast(torch.float64)

    def to(self, device: torch.device | str) -> Case:
        inputs = {name: x.to(device) for name, x in self.inputs.items()}
        return dataclasses.replace(
            self,
            inputs=inputs,
            do=self.do.to(device),
            dend=None if self.dend is None else self.dend.to(device),
        )

    def run(self, function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> Named:
        """All results of a function with the operator's signature, gradients by autograd."""
        leaves = {name: x.detach().requires_grad_() for name, x in self.leaves.items()}
        o, end = function(
            **leaves, scale=self.scale, output_final_state=True, reverse=self.reverse,
            cu_seqlens=self.inputs.get("cu_seqlens"),
        )  # fmt: skip
        outputs, upstream = ((o,), (self.do,)) if self.dend is None else ((o, end), (self.do, self.dend))
        gradients = torch.autograd.grad(outputs, tuple(leaves.values()), upstream)
        return {"o": o.detach(), "end": end.detach(), **self.named(gradients)}

    def run_module(self, module, **options: object) -> Named:
        """All results of a module with `forward` and `backward`, called as the operators call it."""
        wanted = all_of(self.problem.differentiable)
        gradients = module.backward(self.do, self.dend, self.problem, wanted, **options)
        present = [x for x in gradients if x is not None]
        return {**self.run_forward(module, **options), **self.named(present)}

    def run_forward(self, module, **options: object) -> Named:
        """o and end of such a module."""
        return dict(zip(("o", "end"), module.forward(self.problem, **options), strict=True))

    @property
    def problem(self) -> Problem:
        """The operator's arguments."""
        scale = self.inputs["q"].size(-1) ** -0.5 if self.scale is None else self.scale
        *vectors, start = (self.inputs.get(name) for name in TENSORS)
        return Problem(*vectors, scale, start, self.reverse, self.inputs.get("cu_seqlens"))

    def named(self, gradients: Iterable[torch.Tensor]) -> Named:
        return {f"d{name}": x for name, x in zip(self.leaves, gradients, strict=True)}

    @functools.cached_property
    def exact(self) -> Named:
        """The specification in float64: o, end, and by autograd d + name of every leaf."""
        return self.wide.run(reference.recurrent_linear_attention)

    def evaluated(self, method: str, rounding: Errors, samples: int = 0) -> Named:
        """Every result with `rounding`, in the dtype of these inputs; with samples that many."""
        evaluate = {"recurrent": step_by_step, "chunked": in_chunks}[method]
        call = self.inputs, self.do, self.dend, self.scale, self.reverse
        return evaluated(evaluate, *call, rounding, samples)

    def variance(self, method: str) -> Named:
        """Variance of each result, from SAMPLES runs of the model: the largest of those of CHUNKS."""
        largest = {name: torch.zeros_like(x) for name, x in self.exact.items()}
        for chunk in CHUNKS if method == "chunked" else (CHUNK,):
            errors = dataclasses.replace(Errors.of(self.inputs["q"]), chunk=chunk)
            samples = self.wide.evaluated(method, errors, SAMPLES)
            for name, x in self.exact.items():
                largest[name] = torch.maximum(largest[name], (samples[name] - x).square().mean(0))
        return largest

    def judge(self, results: Named, method: str = "recurrent") -> dict[str, float]:
        """The worst error of each given result in units of its budget; 1 is the limit."""
        budgets = budgets_of(self, method)
        return {
            name: worst(
                x, self.exact[name].cpu(), (budgets[name] + half_ulp(self.exact[name], x.dtype)).cpu()
            )
            for name, x in results.items()
        }


@functools.lru_cache(maxsize=64)
def budgets_of(case: Case, method: str) -> Named:
    """The largest error of each result before it is rounded to its own dtype."""
    return limits(case.variance(method))


def limits(variances: Named) -> Named:
    """The largest error of each result from its variance.

    It is five deviations: an entry's own, but at least that of its vector or state.  For gates of whole steps
    and heads it is the largest deviation, since it is estimated from few samples.
    """
    largest = {}
    for name, variance in variances.items():
        if name in ("dg", "dg_gamma"):
            variance = variance.amax(-1 if name == "dg_gamma" else 1, keepdim=True).expand_as(variance)
        else:
            axes = (-2, -1) if name in ("end", "dinitial_state") else (-1,)
            variance = torch.maximum(variance, variance.mean(axes, keepdim=True))
        largest[name] = SIGMAS * variance.sqrt() + UNDERFLOW
    return largest


def names(workload: AttentionWorkload) -> list[str]:
    """Names of the tensors of `inputs`, the gradients "do" and "dend" last."""
    own = [*"qkv", *[name for name in TENSORS if name in workload.gates.split()]]
    return [*own, "initial_state", "do", "dend"] if workload.states else [*own, "do"]


def inputs(workload: AttentionWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """`names` of every tested element, whatever `steps`; g_gamma is (B, H), the same in each."""
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


def one_by_one(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The inputs of every element by itself."""
    return [[x[b : b + 1] for x in tensors] for b in range(len(tensors[0]))]


def case_of(workload: AttentionWorkload, *tensors: torch.Tensor) -> Case:
    """The call that computes these elements together: packings go one after another."""
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
    elements = {name: x for name, x in results.items() if name != "dg_gamma"}
    if workload.lengths:
        sizes = dict.fromkeys(STATES, (-1, len(workload.lengths)))
        elements = {
            n: (x if n in STATES else x[0]).unflatten(0, sizes.get(n, (-1, workload.steps)))
            for n, x in elements.items()
        }
    return elements


def computed(
    workload: AttentionWorkload,
    compute: Callable[[Case], Named],
    of: Collection[str],
    tensors: Sequence[torch.Tensor],
) -> Named:
    """What computes a case, for the results in `of`: of all elements together, dg_gamma of copies of each."""
    results = {}
    if {*of} - {"dg_gamma"}:
        results = by_elements(workload, compute(case_of(workload, *tensors)))
    if "dg_gamma" in of:
        each = [case_of(workload, *copied(workload, one)) for one in one_by_one(tensors)]
        results["dg_gamma"] = torch.stack([compute(case)["dg_gamma"] for case in each])
    return {name: results[name] for name in of}


def joined(parts: Sequence[Named]) -> Named:
    """The results of several elements from those of each."""
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def alone(workload: AttentionWorkload, results: Named) -> Named:
    """The results of one element, dg_gamma among them: that of its copies."""
    own = {"dg_gamma": sum(COPIES) * results["dg_gamma"][None]} if "dg_gamma" in results else {}
    return by_elements(workload, results) | own
