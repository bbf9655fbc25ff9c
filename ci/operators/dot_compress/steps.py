"""dot_compress step by step in PyTorch, for correct implementations and for wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.products import Product, Rounding, plain
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.dot_compress.evidence import RESULTS, run
from helion_sinkhorn.lab.dot_compress.workloads import DotWorkload


def carried(w: DotWorkload, t: torch.Tensor) -> torch.Tensor:
    """An intermediate in the parts that the call requests."""
    high = t.to(w.dtype).to(t.dtype)
    return high if w.parts == 1 else high + (t - high).to(w.dtype).to(t.dtype)


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for an error."""

    product: Product = plain
    """How each of the four products is computed."""
    carry: Callable[[DotWorkload, torch.Tensor], torch.Tensor] = carried
    """Applied to an intermediate."""
    terms: Rounding = lambda t: t
    """Applied to the terms of dx."""
    last: Callable[[DotWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to every result before it is rounded."""
    z_in_gradient: float = 1.0
    sum_rows: Rounding = lambda t: t
    """Applied to x before the products over its rows."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: DotWorkload, x, y, grad, z=None) -> Results:
        x, y, grad = (t.to(self.dtype) for t in (x, y, grad))
        z = 0.0 if z is None else z.to(self.dtype)
        rows = self.sum_rows(x).mT
        summed, dz = self.product(rows, y), self.product(rows, grad)
        b, db = self.carry(w, summed + z), self.carry(w, dz)
        b_again = self.carry(w, summed + self.z_in_gradient * z)
        dx = self.terms(self.product(grad, b_again.mT)) + self.terms(self.product(y, db.mT))
        found = {"out": self.product(x, b), "dx": dx, "dy": self.product(x, db), "dz": dz}
        return {name: self.last(w, t).to(w.dtype) for name, t in found.items()}


EXACT = functools.lru_cache(maxsize=4)(Steps(carry=lambda w, t: t, dtype=torch.float64))
PYTORCH = functools.lru_cache(maxsize=1)(Steps())


right = by_eager(run, RESULTS)
