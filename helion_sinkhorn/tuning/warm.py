"""Filling the cache of generated code for the calls of a model, on its device or for another one."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_type_hints
from unittest import mock

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.machine.presented import as_called
from helion_sinkhorn.operators import OPERATORS
from helion_sinkhorn.runtime import serving
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.generated import host_function
from helion_sinkhorn.runtime.kernel import Built
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


def launch(workload: Any, device: Device, where: str = "cuda") -> None:
    """Make the launches of a call and its gradient, with the configs that serve them.

    On a GPU Triton keeps their machine code too.
    """
    operator = next(row for row in OPERATORS.values() if isinstance(workload, row.workload))
    if operator.call is not None:
        operator.call(workload, where)
        return
    for name, call in operator.kernel_calls(workload):
        choice = serving.choose(operator.kernels[name], call, workload.batch, device)
        trial = operator.trials[choice.kernel]
        parameters = inspect.signature(trial.run).parameters.values()
        options = [p.name for p in parameters if p.default is not p.empty and hasattr(workload, p.name)]
        operands = trial.operands(call, workload.batch, where)
        trial.run(call, choice, *operands, **{name: getattr(workload, name) for name in options})


def generate(workload: Any, device: Device) -> None:
    """Keep the generated code of those launches, on a presented device."""
    launches: list[tuple[Built, tuple[Any, ...]]] = []
    with (
        mock.patch.object(serving, "device_at", return_value=(device, device.asm, False)),
        mock.patch.object(serving, "run", lambda kernel, *arguments: launches.append((kernel, arguments))),
    ):
        launch(workload, device, "meta")
    for kernel, arguments in launches:
        with as_called(arguments) as given:
            host_function(kernel, given, signature(tuple(given)))
