"""Whole steps of optimizers along balanced gradients, for the jobs of `benchmarks.balance`.

"composed" is the average, `sinkhorn_balance` and the update of the weight one after another, "step formula"
the same in PyTorch alone.  The packages of NVIDIA (Emerging-Optimizers) and axolotl are timed where they are
installed, as their users call them.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.optim import SinkGD, SinkhornBalanced

Step = Callable[[], object]
LR, CORRECTION = 1e-3, 0.18
OURS = "optimizer"


def parameter(gradient: torch.Tensor) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.randn_like(gradient))
    p.grad = gradient
    return p


def ours(w: BalanceWorkload, gradient: torch.Tensor) -> Step:
    p = parameter(gradient)
    if w.average.momentum == 0:
        return SinkGD([p], LR).step
    return SinkhornBalanced([p], LR, w.average.momentum, nesterov=w.average.nesterov).step


def formula(balance: Callable[..., torch.Tensor], w: BalanceWorkload) -> Callable[..., None]:
    """(gradient, average, weight) -> nothing: a step of the workload with this function."""
    momentum, nesterov, sinkgd = *w.average, w.settings.scale == "none"
    size = LR * math.sqrt(w.batch) if sinkgd else LR * CORRECTION

    def step(gradient: torch.Tensor, average: torch.Tensor | None, weight: torch.Tensor) -> None:
        u = gradient
        if average is not None:
            average.lerp_(gradient, 1.0 - momentum)
            u = gradient.lerp(average, momentum) if nesterov else average
        weight.sub_(balance(u, **w.options), alpha=size)

    return step


def plain(step: Callable[..., None], w: BalanceWorkload, gradient: torch.Tensor) -> Step:
    average = torch.zeros_like(gradient) if w.average.momentum > 0 else None
    weight = torch.randn_like(gradient)
    return lambda: step(gradient, average, weight)


def definition(update: torch.Tensor, **options) -> torch.Tensor:
    """Algorithm 1 in float32."""
    return reference.sinkhorn_balance(update.float(), **options).to(update.dtype)


def nvidia(w: BalanceWorkload, gradient: torch.Tensor) -> Step:
    from emerging_optimizers.embedding_optimizers import Sinkhorn

    return Sinkhorn([parameter(gradient)], LR, w.average.momentum).step


def axolotl(w: BalanceWorkload, gradient: torch.Tensor) -> Step:
    """With its fused kernel."""
    from axolotl.utils.optimizers.sinkgd import SinkGD as Other

    group = {"params": [parameter(gradient)], "use_sinkgd": True}
    return Other([group], LR, sinkgd_lr_scale=1.0, sinkgd_fused_kernel=True).step


FUNCTIONS: dict[str, Callable[[BalanceWorkload, torch.Tensor], Step]] = {
    OURS: ours,
    "composed": lambda w, g: plain(formula(sinkhorn_balance, w), w, g),
    "step formula": lambda w, g: plain(formula(definition, w), w, g),
    "step formula, compiled": lambda w, g: plain(torch.compile(formula(definition, w), dynamic=False), w, g),
    "emerging_optimizers": nvidia,
    "axolotl": axolotl,
}


def of(w: BalanceWorkload) -> list[str]:
    """The functions that compute a step: NVIDIA's has momentum, axolotl's has none."""
    other = "axolotl" if w.average.momentum > 0 else "emerging_optimizers"
    return [name for name in FUNCTIONS if name != other]
