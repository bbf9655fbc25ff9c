"""Filling the cache of generated code for the calls of a model, on its device or for another one."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints

import torch

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.machine.binary import Job
from helion_sinkhorn.machine.presented import as_called
from helion_sinkhorn.operators import OPERATORS, operator_of
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.generated import host_function
from helion_sinkhorn.tuning.child import first_launch
from helion_sinkhorn.workloads import WORKLOADS

READERS: dict[Any, Callable[[str], Any]] = {
    int: int,
    float: float,
    str: str,
    bool: lambda text: {"True": True, "False": False}[text],
    torch.dtype: lambda text: {
        "float32": torch.float32,
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
    }[text],
}
"""Types that a field of a workload may be given as, with how they are read."""


def fields(operator: str) -> dict[str, Any]:
    """What a call of an operator is described by: the names and types of its workloads' fields."""
    hints = get_type_hints(OPERATORS[operator].workload)
    hidden = ("name", "tags", "source")
    return {name: kind for name, kind in hints.items() if kind in READERS and name not in hidden}


def workloads(operator: str, given: Sequence[str]) -> Iterator[Any]:
    """Every combination of the values given, the other fields as in the operator's first workload.

    Args:
        operator: of OPERATORS.
        given: "field=value" or "field=value,value" each.

    Raises:
        ValueError: a field or a value is not one.
    """
    known = fields(operator)
    lists: dict[str, list[Any]] = {}
    for words in given:
        name, _, values = words.partition("=")
        try:
            lists[name] = [READERS[known[name]](value) for value in values.split(",")]
        except (KeyError, ValueError):
            accepted = ", ".join(f"{n} ({k.__name__})" for n, k in known.items())
            raise ValueError(
                f"{words!r} says nothing about a call of {operator}; give field=value or field=value,value "
                f"with these fields: {accepted}"
            ) from None
    base = next(w for w in WORKLOADS.values() if isinstance(w, OPERATORS[operator].workload))
    for values in itertools.product(*lists.values()):
        yield dataclasses.replace(base, **dict(zip(lists, values, strict=True)))


def jobs(workload: Any, device: Device) -> Iterator[Job]:
    """The launches of a call and its gradient, with the configs that would serve them."""
    operator = next(row for row in OPERATORS.values() if isinstance(workload, row.workload))
    for name, call in operator.kernel_calls(workload):
        choice = serving.choose(operator.kernels[name], call, workload.batch, device)
        parameters = inspect.signature(operator.trials[choice.kernel].run).parameters.values()
        options = [p.name for p in parameters if p.default is not p.empty and hasattr(workload, p.name)]
        yield Job(call, choice, workload.batch, tuple((o, getattr(workload, o)) for o in options))


def launch(job: Job, where: str = "cuda") -> None:
    """Make a launch on the GPU at hand: Triton keeps its machine code too."""
    trial = operator_of(job.choice.kernel).trials[job.choice.kernel]
    trial.run(job.call, job.choice, *trial.operands(job.call, job.batch, where), **dict(job.options))


def generate(job: Job, key: str) -> None:
    """Keep the generated code of a launch on a presented device."""
    kernel, arguments = first_launch(DEVICES[key], job)
    with as_called(arguments) as given:
        host_function(kernel, given, signature(tuple(given)))
