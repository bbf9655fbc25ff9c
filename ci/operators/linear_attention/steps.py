"""Recurrent linear attention in PyTorch: on a machine, step by step and in chunks, and to the last rounding.

Each run takes (workload, *inputs) as `budget.names` has them, computes every element by itself, and returns
results by the names of the gate in the dtypes that the operator has.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic, bfloat16, off_by
from ci.gate.columns import Change, same
from ci.gate.products import Product, plain
from ci.gate.wrong import Results, Run, narrow
from helion_sinkhorn import reference
from helion_sinkhorn.lab.linear_attention.budget import (
    STATES,
    Case,
    alone,
    case_of,
    copied,
    joined,
    one_by_one,
)
from helion_sinkhorn.lab.linear_attention.evidence import methods, title
from helion_sinkhorn.lab.linear_attention.model import BFLOAT16, CHUNK, METHODS, Named
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload

Compute = Callable[[AttentionWorkload, str, Case], Named]
"""(workload, method, one element) -> its results."""


@dataclass(frozen=True)
class Machine:
    """Float32 arithmetic, for what the model's evaluations call where a kernel rounds."""

    sums: Arithmetic = PLAIN
    function: Change = torch.exp
    exp_ulps: float = 0.0
    multiply: Product = plain
    kept_state: Change = same
    exponential: Change = same
    operands: Change = same
    """How operands of matrix units are changed."""
    changed: dict[str, Change] = dataclasses.field(default_factory=dict)
    """Changes of operands by name, instead of `operands`."""
    partial: Change = same
    """After every sum."""
    chunk: int = CHUNK
    least: float = 2.0**-4

    def __call__(self, x, size=1.0):
        return x

    def state(self, h):
        return self.kept_state(h)

    def operand(self, x, name):
        return self.changed.get(name, self.operands)(x)

    def exp(self, w, count=1):
        return self.exponential(off_by(self.function(w.float()), self.exp_ulps))

    def running(self, terms, count):
        return terms

    def sum(self, terms, axis, count=None):
        return self.partial(self.sums.sum(terms, axis).squeeze(axis))

    def product(self, a, b):
        return self.partial(self.multiply(a, b))

    def gathered(self, x):
        return x


class InFloat64(Arithmetic):
    def sum(self, terms, axis):
        return terms.double().sum(axis, keepdim=True).float()


def in_two_parts(x: torch.Tensor) -> torch.Tensor:
    """The sum of two bfloat16 numbers that stand for x."""
    return bfloat16(x) + bfloat16(x - bfloat16(x))


def for_workload(machine: Machine, w: AttentionWorkload) -> Machine:
    """With the operands of the chunked kernels for the workload's dtype, where it names none."""
    if w.dtype != torch.bfloat16:
        return machine
    changed = machine.changed
    if machine.operands is same:
        machine, changed = dataclasses.replace(machine, operands=bfloat16), {"pairs": in_two_parts} | changed
    return dataclasses.replace(machine, changed=changed, least=BFLOAT16["least"])


def emulated(machine: Machine) -> Compute:
    """The kernels' equations on a machine."""
    return lambda w, method, case: case.cast(torch.float32).evaluated(method, for_workload(machine, w))


def specification(dtype: torch.dtype) -> Compute:
    """By autograd, with the state of every step kept: its gates' gradients are sums over a state."""
    return lambda w, method, case: case.cast(dtype).run(reference.recurrent_linear_attention)


def each(w: AttentionWorkload, compute: Callable[[Case], Named], tensors: Sequence[torch.Tensor]) -> Named:
    """The results of every element by itself, in their dtypes."""

    def stored(*one: torch.Tensor) -> Named:
        results = compute(case_of(w, *one))
        return {n: x.to(torch.float32 if n in STATES else w.dtype) for n, x in results.items()}

    def single(one: list[torch.Tensor]) -> Named:
        results = alone(w, stored(*one))
        if "dg_gamma" in results and narrow(w):
            # seven times what is rounded already would be rounded twice
            results["dg_gamma"] = stored(*copied(w, one))["dg_gamma"][None]
        return results

    return joined([single(one) for one in one_by_one(tensors)])


def by(compute: Compute, only: Collection[str] = METHODS) -> Run:
    """An implementation of some of the methods."""

    def of_methods(w: AttentionWorkload, *tensors: torch.Tensor) -> Results:
        return {
            title(method, name): x
            for method in methods(w)
            if method in only
            for name, x in each(w, functools.partial(compute, w, method), tensors).items()
        }

    return of_methods


def exactly(
    change: Callable[[AttentionWorkload, Case], Case] = lambda w, case: case,
    then: Callable[[AttentionWorkload, Case, Named], Named] = lambda w, case, results: {},
) -> Run:
    """Right to the last rounding, for a changed call, and but for results that are made again then.

    Both methods have the same.
    """

    def compute(w: AttentionWorkload, case: Case) -> Named:
        case = change(w, case).cast(torch.float64)
        results = case.run(reference.recurrent_linear_attention)
        return results | {n: x for n, x in then(w, case, results).items() if n in results}

    def of_methods(w: AttentionWorkload, *tensors: torch.Tensor) -> Results:
        results = each(w, functools.partial(compute, w), tensors)
        return {title(method, name): x for method in methods(w) for name, x in results.items()}

    return of_methods


EXACT = exactly()
