"""hc_pre step by step in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.pre.budget import RESULTS, exact
from helion_sinkhorn.lab.pre.evidence import dtype_of, run
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    machine: Arithmetic = PLAIN
    """Its `dot` adds the streams."""
    columns: Change = at_once
    """The sum of dpre."""
    product: Change = same
    """Applied to a product before it is added."""
    last: Callable[[HcPreWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtype of x."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: HcPreWorkload, x, pre, dy) -> Results:
        x, pre, dy = (t.to(self.dtype) for t in (x, pre, dy))
        weights, upstream = pre.unsqueeze(-1), dy.unsqueeze(-2)
        if self.product is same:
            y = self.machine.dot(x, weights, -2)
        else:
            y = self.machine.sum(self.product(x * weights), -2)
        results = {
            "y": self.last(w, y.squeeze(-2)),
            "dx": self.last(w, weights * upstream),
            "dpre": self.columns(self.product(upstream * x)),
        }
        return {name: t.to(dtype_of(w, name)) for name, t in results.items()}


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))


@functools.lru_cache(maxsize=1)
def pytorch(w: HcPreWorkload, *inputs: torch.Tensor) -> Results:
    """The specification in float32 and autograd."""
    return {name: t.to(dtype_of(w, name)) for name, t in exact(*inputs, dtype=torch.float32).items()}


right = by_eager(run, RESULTS)
