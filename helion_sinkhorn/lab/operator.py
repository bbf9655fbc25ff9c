"""Operator, a row of OPERATORS: what tuning, machine code checks and CI ask of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from helion_sinkhorn.runtime.kernel import Choice, Kernel

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Trial:
    """How a kernel is run by itself, by the tuner on a GPU and by the offline compiler on nothing."""

    operands: Callable[[Any, int, str], Tensors]
    """(call, batch, device) -> what the kernel reads; of device "meta" only their layout is asked."""
    run: Callable[..., torch.Tensor | Tensors]
    """(call, choice, *operands, **options) -> what it writes, through the launcher of the operator."""
    error: Callable[[Any, Choice, str], float]
    """(call, choice, device) -> the largest error in units of its budget: above 1 the choice is wrong."""
    judged_apart: bool = False
    """Whether `error` launches another program than `run`, which the tuner has compiled beside it."""


def no_problems(binary: Any) -> Iterator[str]:
    """No rule beside those that hold for every kernel."""
    return iter(())


@dataclass(frozen=True, eq=False)
class Operator:
    """One operator; a Binary is one of machine.binary, which stands above this module."""

    name: str
    workload: type[Any]
    """The type of its workloads."""
    kernels: Mapping[str, Kernel]
    trials: Mapping[str, Trial]
    """By the name of a kernel."""
    kernel_calls: Callable[[Any], Iterator[tuple[str, Any]]]
    """workload -> (kernel, its call), one for each kernel that it runs."""
    _: KW_ONLY
    call_public: Callable[[Any, Callable[..., torch.Tensor]], None]
    """(workload, empty): the public function, for what it checks, on tensors of empty(*shape, dtype=...)."""
    fixed: tuple[str, ...] = ()
    """Fields of a workload that its trials do not take: their launches have the defaults."""
    problems: Callable[[Any], Iterator[str]] = no_problems
    """Binary -> why it must not be launched, beside the reasons that hold for every kernel."""
    call: Callable[[Any, str], None] | None = None
    """(workload, device): the launches of a call and its gradient; None where those are the trials'."""


def noise(device: str, dtype: str, *shapes: tuple[int, ...]) -> Tensors:
    """Standard normal tensors, the same for the same shapes."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    drawn = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    return tuple(t.to(getattr(torch, dtype)) for t in drawn)


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
