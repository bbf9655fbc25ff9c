"""How a kernel is run by itself: a row of TRIALS, and what all rows share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn.kernels import Choice

Tensors = tuple[torch.Tensor, ...]
Programs = Iterator[tuple[str, Any]]
"""(kernel, its call), one for each kernel that a workload is served by."""


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
