"""The gate's tests, and what an operator gives it.

A result is tested by its error against float64, in units of what correct rounding can do (lab/truth.py), and
by how it is computed (runs.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ci.gate.wrong import Run, Wrong
from helion_sinkhorn.lab.truth import Truth, largest, noticeable

SCALES = {"P": noticeable}
"""What an error is relative to; `largest` if not named, because entries of a gradient cancel."""


def gap(of: str, a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """The distance of two results (K, n, m) of one dtype, which is reported and never a criterion.

    relative and ulps (of their dtype) refer to the scale of `of`; flips is the share of entries that differ
    after rounding to bfloat16.
    """
    kind = torch.finfo(a.dtype)
    a, b = a.detach().double(), b.detach().double()
    scale_of = SCALES.get(of, largest)
    scale = torch.maximum(scale_of(a), scale_of(b)).clamp_min(kind.smallest_normal)
    place = kind.eps * torch.exp2(torch.frexp(scale).exponent.double() - 1)
    distance = (a - b).abs()
    return {
        "largest": distance.max().item(),
        "largest_relative": (distance / scale).max().item(),
        "largest_ulps": (distance / place).max().item(),
        "mean_ulps": (distance / place).mean().item(),
        "flips": (a.bfloat16() != b.bfloat16()).double().mean().item(),
    }


@dataclass(frozen=True)
class Candidate:
    """One kernel with one config, and the result it gives."""

    kernel: str
    of: str
    config: dict[str, object]
    source: str
    served: bool
    """Whether the public function would use this config for this call."""
    run: Callable[..., torch.Tensor]


@dataclass(frozen=True)
class Operator:
    """An operator for the gate, a row of operators.OPERATORS."""

    takes: Callable[[Any], bool]
    """Whether a workload is one of this operator's."""
    inputs: Callable[[Any, int], tuple[torch.Tensor, ...]]
    """(workload, steps) -> the tested part of its inputs, batch first, the same bits on every machine."""
    truths: Callable[..., dict[str, Truth]]
    """(workload, *inputs) -> Truths by the name of the result."""
    candidates: Callable[..., list[Candidate]]
    """(workload, *inputs on a device) -> the candidates to test there."""
    good: dict[str, Run]
    """Correct implementations, emulated."""
    wrong: list[Wrong]
    """Wrong implementations."""
    baseline: Run
    """The implementation with which rules in common use compare."""
    right: Run
    """The right implementation that most wrong ones change."""
    vendors: dict[str, Run] = field(default_factory=dict)
    """Implementations with the arithmetic that vendors state."""
    compiled: Run | None = None
    """The definition under torch.compile, on the device of the inputs."""
    same_bits: frozenset[str] = frozenset()
    """Results with the same bits under every config, since batches of other sizes may have other configs."""

    @property
    def on_many(self) -> list[Wrong]:
        """The wrong implementations that are tested by statistics."""
        return [w for w in self.wrong if not isinstance(w.on, str)]
