"""The truth and the error budget of recurrent linear attention, for tests, tuner, gate and tritonbench.

`step_by_step` and `in_chunks` are the equations of the two methods, with a call wherever the kernels round.
In float64, with `Errors` as calls, they give the budget: five standard deviations of random errors, each of
the size of its bound (docs/dev/linear_attention.md, Rounding).  In float32, with the arithmetic of a machine
as calls, they are the emulations of ci/operators/linear_attention/steps.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
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
        found = module.backward(self.do, self.dend, self.problem, wanted, **options)
        gradients = [x for x in found if x is not None]
        return {**self.run_forward(module, **options), **self.named(gradients)}

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
            found = self.wide.evaluated(method, errors, SAMPLES)
            for name, x in self.exact.items():
                largest[name] = torch.maximum(largest[name], (found[name] - x).square().mean(0))
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
    found = {}
    for name, variance in variances.items():
        if name in ("dg", "dg_gamma"):
            variance = variance.amax(-1 if name == "dg_gamma" else 1, keepdim=True).expand_as(variance)
        else:
            axes = (-2, -1) if name in ("end", "dinitial_state") else (-1,)
            variance = torch.maximum(variance, variance.mean(axes, keepdim=True))
        found[name] = SIGMAS * variance.sqrt() + UNDERFLOW
    return found
