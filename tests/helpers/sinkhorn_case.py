"""Case: one set of inputs of `sinkhorn` with its truth and budget, on which implementations are tested."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.rounding import half_ulp, worst
from helion_sinkhorn.lab.sinkhorn.budget import error_budget, exact
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload


@dataclass(frozen=True)
class Case:
    logits: str
    n: int
    m: int
    n_iters: int = 20
    form: str = "deepseek"
    first: str = "rows"
    batch: int = 5
    eps: float = 1e-6
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def workload(self) -> SinkhornWorkload:
        named = {name: value for name, value in vars(self).items() if name != "seed"}
        return SinkhornWorkload(name="", tags=frozenset(), source="", **named)

    @property
    def arguments(self) -> tuple[int, float, str, str]:
        return self.workload.arguments

    @property
    def options(self) -> dict[str, object]:
        return self.workload.options

    def inputs(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, upstream gradient), each of `dtype`."""
        return self.workload.make_inputs(self.seed, device)

    def judge(self, p: torch.Tensor | None = None, dx: torch.Tensor | None = None) -> dict[str, float]:
        """The worst error of each given result in units of its budget; 1 is the limit."""
        p64, dx64, p_budget, dx_budget = _truth(self)
        ratios = {}
        if p is not None:
            ratios["P"] = worst(p, p64, p_budget + half_ulp(p64, p.dtype))
        if dx is not None:
            ratios["dX"] = worst(dx, dx64, dx_budget)
        return ratios


@functools.lru_cache(maxsize=256)
def _truth(case: Case) -> tuple[torch.Tensor, ...]:
    x, dy = case.inputs()
    return *exact(x, dy, **case.options), *error_budget(x, dy, **case.options)
