"""Filling the cache of generated code for the calls of a model, on its device or for another one."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any, get_type_hints
from unittest import mock

import torch
from torch._subclasses import fake_tensor

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.machine.presented import as_called
from helion_sinkhorn.lab.operators import OPERATORS, operator_for
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.nearest import suggestion
from helion_sinkhorn.runtime.checks import KERNEL_DTYPES
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.generated import host_function
from helion_sinkhorn.runtime.kernel import Built
from helion_sinkhorn.runtime.launch import Launcher, choose, launching_with


def read_flag(text: str) -> bool:
    return {"True": True, "False": False}[text]


def read_dtype(text: str) -> torch.dtype:
    return {str(dtype).removeprefix("torch."): dtype for dtype in KERNEL_DTYPES}[text]


READERS: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "pass an int"),
    float: (float, "pass a float"),
    str: (str, ""),
    bool: (read_flag, "use True or False"),
    torch.dtype: (read_dtype, "use float32, bfloat16 or float16 (float64 is computed by PyTorch)"),
}
"""Types that a field of a workload may be given as: how they are read, and what is said to another text."""
LARGEST = (1 << 31) - 1
"""The largest int of a field."""
DATA = ("logits", "values", "parameters", "spread", "below", "grad_scale", "strength")
"""Fields of what is drawn for a call, which is launched alike whatever its numbers are."""
KEYWORDS = {"hc_mult": "n", "sinkhorn_iters": "n_iters"}
"""What public functions call fields of their workloads."""


def fields(operator: str) -> dict[str, Any]:
    """What a call of an operator is described by: the names and types of its workloads' fields."""
    row = OPERATORS[operator]
    hidden = ("name", "tags", "source", *DATA, *row.fixed)
    hints = get_type_hints(row.workload)
    return {name: kind for name, kind in hints.items() if kind in READERS and name not in hidden}


def workloads(operator: str, given: Sequence[str]) -> list[Any]:
    """Every combination of the values given, the other fields as in the operator's first workload.

    Args:
        operator: of OPERATORS.
        given: "field=value" or "field=value,value" each.

    Raises:
        ValueError: a field or a value is not one, or no kernel serves one of the calls.
    """
    base = next(w for w in WORKLOADS.values() if isinstance(w, OPERATORS[operator].workload))
    lists: dict[str, list[Any]] = {}
    for words in given:
        name, equals, values = words.partition("=")
        known = fields(operator)
        if name not in known:
            near = suggestion(name, known)
            raise ValueError(f"{operator} has no field {name!r}; its fields are {', '.join(known)}{near}")
        if not equals:
            example = str(getattr(base, name)).removeprefix("torch.")
            raise ValueError(f"{name!r} has no value; write {name}={example}")
        if name in lists:
            raise ValueError(f"{name} is given twice; write all its values as {name}=value,value")
        lists[name] = [read(name, known[name], value) for value in values.split(",")]
    combinations = itertools.product(*lists.values())
    calls = [dataclasses.replace(base, **dict(zip(lists, values, strict=True))) for values in combinations]
    check(operator, calls)
    return calls


def read(name: str, kind: Any, text: str) -> Any:
    """The value of a field.

    Raises:
        ValueError: the text is none of its type, or an int less than the field's least.
    """
    reader, accepted = READERS[kind]
    try:
        value = reader(text)
    except (KeyError, ValueError):
        raise ValueError(f"{name} is {text!r}; {accepted}") from None
    # 0 iterations and 0 splits are calls too
    least = 0 if name in ("n_iters", "splits") else 1
    if kind is int and not least <= value <= LARGEST:
        raise ValueError(f"{name} is {value}; pass an int from {least} to {LARGEST}")
    return value


def check(operator: str, calls: Sequence[Any]) -> None:
    """Raise ValueError for the first call that the public function refuses, or leaves to PyTorch.

    It is called on fake tensors of a GPU, so nothing is allocated or launched.
    """
    with mock.patch.object(fake_tensor, "init_gpu_context", create=True):
        for call in calls:
            with fake_tensor.FakeTensorMode():
                empty = functools.partial(torch.empty, device="cuda:0")
                try:
                    OPERATORS[operator].call_public(call, empty)
                except NotImplementedError as refusal:
                    # the rest is about other implementations, which are none here
                    why = str(refusal).removeprefix("implementation='helion': ").partition("; use ")[0]
                    raise ValueError(f"{in_fields(why)}: PyTorch computes such a call") from None
                except (TypeError, ValueError) as refusal:
                    raise ValueError(in_fields(str(refusal))) from None
                except RuntimeError as refusal:
                    # sizes of which torch makes no tensor; a trace of C++ follows
                    raise ValueError(str(refusal).splitlines()[0]) from None


def in_fields(message: str) -> str:
    """A message of a public function, with the names of fields for its keywords."""
    for keyword, field in KEYWORDS.items():
        message = message.replace(keyword, field)
    return message


def launch(workload: Any, device: Device, where: str = "cuda") -> None:
    """Make the launches of a call and its gradient, with the configs that serve them.

    On a GPU Triton keeps their machine code too.
    """
    operator = operator_for(workload)
    if operator.call is not None:
        operator.call(workload, where)
        return
    for name, call in (*operator.before(workload), *operator.kernel_calls(workload)):
        choice = choose(operator.kernels[name], call, workload.batch, device)
        trial = operator.trials[choice.kernel]
        parameters = inspect.signature(trial.run).parameters.values()
        options = [p.name for p in parameters if p.default is not p.empty and hasattr(workload, p.name)]
        operands = trial.operands(call, workload.batch, where)
        trial.run(call, choice, *operands, **{name: getattr(workload, name) for name in options})


def launches(workload: Any, device: Device) -> list[tuple[Built, tuple[Any, ...]]]:
    """The launches of a call and its gradient on a presented device; none is made."""
    notes: list[tuple[Built, tuple[Any, ...]]] = []

    def note(kernel: Built, *arguments: Any) -> None:
        notes.append((kernel, arguments))

    noting = Launcher(lambda index: (device, device.asm, False), note)
    with launching_with(noting):
        launch(workload, device, "meta")
    return notes


def generate(workload: Any, device: Device) -> None:
    """Keep the generated code of those launches, on a presented device."""
    for kernel, arguments in launches(workload, device):
        with as_called(arguments) as given:
            host_function(kernel, given, signature(tuple(given)))
