"""hc_pre with a norm step by step in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.pre.evidence import dtype_of, run
from helion_sinkhorn.lab.pre.normed.budget import RESULTS, by_autograd
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload


def stored(w: HcPreWorkload, y: torch.Tensor) -> torch.Tensor:
    """The collapsed state as it would be read."""
    return y.to(w.dtype).to(y.dtype)


def root(squares: torch.Tensor, c: int, eps: float) -> torch.Tensor:
    """r of a token's sum of squares."""
    return 1 / (squares / c + eps).sqrt()


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    machine: Arithmetic = PLAIN
    """Its `dot` adds the streams."""
    columns: Change = at_once
    """Every sum over columns."""
    tokens: Change = at_once
    """The sum of dweight."""
    collapsed: Callable[[HcPreWorkload, torch.Tensor], torch.Tensor] = stored
    of_dweight: Callable[[HcPreWorkload, torch.Tensor], torch.Tensor] | None = None
    """`collapsed` for dweight, if it is different there."""
    factor: Callable[[torch.Tensor, int, float], torch.Tensor] = root
    mean: Change = same
    """Applied to the mean of h v."""
    last: Callable[[HcPreWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtype of x."""
    state: Change = same
    """Applied to dy."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: HcPreWorkload, x, pre, du, weight) -> Results:
        x, pre, du, weight = (t.to(self.dtype) for t in (x, pre, du, weight.unsqueeze(1)))
        weights, c = pre.unsqueeze(-1), x.size(-1)
        summed = self.machine.dot(x, weights, -2).squeeze(-2)
        y = self.collapsed(w, summed)
        r = self.factor(self.columns(y * y), c, w.norm_eps).unsqueeze(-1)
        v, h = y * r, weight * du
        along = self.mean(self.columns(h * v).unsqueeze(-1) / c)
        dy = self.state((h - v * along) * r).unsqueeze(-2)
        unit = v if self.of_dweight is None else self.of_dweight(w, summed) * r
        results = {
            "u": self.last(w, v * weight),
            "dx": self.last(w, weights * dy),
            "dpre": self.columns(dy * x),
            "dweight": self.tokens((du * unit).mT).unsqueeze(1),
        }
        return {name: t.to(dtype_of(w, name)) for name, t in results.items()}


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))


@functools.lru_cache(maxsize=1)
def pytorch(w: HcPreWorkload, *inputs: torch.Tensor) -> Results:
    """The specification in float32 and autograd."""
    results = by_autograd(*inputs, w.norm_eps, torch.float32)
    return {name: t.to(dtype_of(w, name)) for name, t in results.items()}


right = by_eager(run, RESULTS)
