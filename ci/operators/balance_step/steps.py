"""A step of an optimizer along balanced gradients, in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.columns import Change, same
from ci.gate.wrong import Results, by_eager
from ci.operators.balance.steps import Steps
from helion_sinkhorn.lab.balance.budget import results, size_of
from helion_sinkhorn.lab.balance.evidence import run
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload

Averaged = Callable[[BalanceWorkload, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""(workload, gradient, average) -> (what is stored as the average, what is balanced)."""


def averaged(
    w: BalanceWorkload, gradient: torch.Tensor, average: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Nesterov's update is made of the average before it is rounded."""
    momentum, rest = w.average.momentum, 1.0 - w.average.momentum
    mean = momentum * average + rest * gradient
    return mean, momentum * mean + rest * gradient if w.average.nesterov else mean


PLAIN = Steps()


@dataclass(frozen=True)
class Step:
    """A field is a choice of implementations or a place for a fault."""

    balance: Steps = PLAIN
    average: Averaged = averaged
    ahead: Change | None = None
    """Applied to the update to balance, instead of its rounding to the dtype of the weight."""
    iterate: Change = same
    """Applied to what is subtracted from the weight."""
    size: Callable[[BalanceWorkload], float] = size_of
    last: Callable[[BalanceWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtype of the weight."""
    masked: Change | None = None
    """What is written to the masked rows of the weight."""

    def __call__(self, w: BalanceWorkload, *inputs: torch.Tensor) -> Results:
        kind = self.balance.dtype
        gradient, *average, weight = (t.to(kind) for t in inputs)
        by_name, u = {}, gradient
        if average:
            mean, u = self.average(w, gradient, *average)
            by_name["average"] = mean.to(w.dtype)
            u = u.to(w.dtype).to(kind) if self.ahead is None else self.ahead(u)
        iterate = self.balance.iterate(w, u)
        moved = self.last(w, weight - self.iterate(self.size(w) * iterate)).to(w.dtype)
        if self.masked is not None:
            moved = torch.where((iterate == 0).all(-1, keepdim=True), self.masked(moved), moved)
        return by_name | {"weight": moved}


EXACT = functools.lru_cache(maxsize=4)(Step(Steps(dtype=torch.float64)))


right = by_eager(run, results)
