"""sinkhorn_balance step by step in PyTorch, for correct implementations and for faults."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.balance.budget import RESULTS
from helion_sinkhorn.lab.balance.evidence import run
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance import reference


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    rows: Change = at_once
    """The sum over a row of what `term` makes."""
    columns: Change = at_once
    """The sum over a column, whose entries are last."""
    machine: Arithmetic = PLAIN
    """Its division of a scale by a norm."""
    term: Change = torch.square
    scale: Change = same
    """Applied to the scales of rows or columns after each step."""
    stored: Change | None = None
    """Applied to the iterate, which is stored after each step instead of scales."""
    last: Callable[[BalanceWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtype of the update."""
    dtype: torch.dtype = torch.float32

    def norms(self, u: torch.Tensor, axis: int) -> torch.Tensor:
        terms = self.term(u)
        sums = self.rows(terms) if axis == -1 else self.columns(terms.mT.contiguous())
        return sums.sqrt().unsqueeze(axis)

    def __call__(self, w: BalanceWorkload, update: torch.Tensor) -> Results:
        factor = w.n**0.5 if w.settings.scale == "row_rms" else 1.0
        return {"u": self.last(w, self.iterate(w, update) * factor).to(w.dtype)}

    def iterate(self, w: BalanceWorkload, update: torch.Tensor) -> torch.Tensor:
        """The last iterate, not rounded."""
        x, s = update.to(self.dtype), w.settings
        norms = x.square().sum(-1).sqrt()
        if s.zero_row_threshold > 0:
            live = norms > s.zero_row_threshold * norms.mean(-1, keepdim=True)
            x = torch.where(live.unsqueeze(-1), x, 0.0)
        scales = {-1: torch.ones_like(x[..., :1]), -2: torch.ones_like(x[..., :1, :])}
        axes = (-1, -2) if s.first == "rows" else (-2, -1)
        for k in range(s.steps):
            axis = axes[k % 2]
            norm = self.norms(scales[-1] * x * scales[-2], axis)
            scale = self.machine.divide(scales[axis], torch.where(norm == 0, 1.0, norm + s.eps))
            scales[axis] = self.scale(scale)
            if self.stored is not None:
                x, scales[axis] = self.stored(scales[-1] * x * scales[-2]), torch.ones_like(scale)
        return scales[-1] * x * scales[-2]


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))


def pytorch(w: BalanceWorkload, update: torch.Tensor) -> Results:
    """The specification in float32."""
    return {"u": reference.sinkhorn_balance(update.float(), **w.options).to(w.dtype)}


right = by_eager(run, RESULTS)
