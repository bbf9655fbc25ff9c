"""quantize step by step in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.columns import Change, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.pre.quantized.evidence import RESULTS, nearest, run, scale_of
from helion_sinkhorn.lab.pre.quantized.workloads import QuantizeWorkload


def magnitudes(parts: torch.Tensor) -> torch.Tensor:
    return parts.abs().amax(-1)


def quotient(parts: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Rounded to float32 once."""
    return (parts / scale).float()


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    largest: Change = magnitudes
    """The largest entries of groups, which have their entries last."""
    scale: Callable[[QuantizeWorkload, torch.Tensor], torch.Tensor] = scale_of
    taken: Change = same
    """Applied to the scales where values are divided by them."""
    stored: Change = same
    """The same where they are stored."""
    ratio: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = quotient
    value: Change = nearest
    """A float32 to the e4m3 that stands for it."""

    def __call__(self, w: QuantizeWorkload, u: torch.Tensor) -> Results:
        parts = u.double().unflatten(-1, (-1, w.group))
        scale = self.scale(w, self.largest(parts))
        values = self.value(self.ratio(parts, self.taken(scale).unsqueeze(-1))).flatten(-2)
        return {"values": values.float(), "scales": self.stored(scale).float()}


right = by_eager(run, RESULTS)
