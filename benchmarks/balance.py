"""Jobs of `benchmarks.bench balance`: updates balanced by kernels, and by formulas of optimizers in PyTorch;
and whole steps of optimizers along balanced gradients.

us are medians of one replay of a CUDA graph of one call, for which the device waits.  The floor is what the
passes of the kernels read and write, at the rate of a copy of the same matrix: the update for the norms, its
rows that are not masked for each row step, and one write.  A step reads gradient and average and writes the
average and what is balanced in place of the norms, and reads and writes the weight at its end.  "definition"
is algorithm 1 of DeepSeek-V4.1 in float32, as NVIDIA's Emerging-Optimizers has it, and "sinkgd" is rounded to
the dtype of the update in each step, as axolotl has it (beside kernels of its own); both are written from
their equations.  Of steps, "composed" is the average, `sinkhorn_balance` and the update of the weight one
after another, "step formula" the same in PyTorch alone.  The packages of NVIDIA and axolotl are timed where
they are installed, as their users call them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks import jobs, memory, timing
from benchmarks.jobs import Row
from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.tuning.timing import Run, captured
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.optim import SinkGD, SinkhornBalanced

FILE, WORKERS = "balance.csv", 3
"""The functions of one workload get ready side by side: five matrices in float32 each, at most."""
FIRST_COLUMNS = "section", "function", "shape", "dtype", "masked", "us", "us_copy", "x_floor", "note"
MASKED = 0.0, 0.5, 0.9, 0.99
"""Shares of masked rows."""
LR, CORRECTION = 1e-3, 0.18


def definition(update: torch.Tensor, **options) -> torch.Tensor:
    """Algorithm 1 in float32."""
    return reference.sinkhorn_balance(update.float(), **options).to(update.dtype)


def sinkgd(update: torch.Tensor, steps: int = 10, eps: float = 1e-20, **options) -> torch.Tensor:
    """SinkGD: rows and columns in turn to a root mean square of 1, each step rounded."""
    for k in range(steps):
        axis = -1 - k % 2
        norm = update.float().norm(dim=axis, keepdim=True)
        update = (update * (math.sqrt(update.size(axis)) / (norm + eps))).to(update.dtype)
    return update


def compiled(function: Callable) -> Callable:
    return torch.compile(function, dynamic=False)


def step_of(balance: Callable[..., torch.Tensor], w: BalanceWorkload) -> Callable[..., None]:
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


def plain(step: Callable[..., None], w: BalanceWorkload, gradient: torch.Tensor) -> Run:
    average = torch.zeros_like(gradient) if w.average.momentum > 0 else None
    return partial(step, gradient, average, torch.randn_like(gradient))


def parameter(gradient: torch.Tensor) -> torch.nn.Parameter:
    p = torch.nn.Parameter(torch.randn_like(gradient))
    p.grad = gradient
    return p


def optimizer(w: BalanceWorkload, gradient: torch.Tensor) -> Run:
    """This package's."""
    p = parameter(gradient)
    if w.average.momentum == 0:
        return SinkGD([p], LR).step
    return SinkhornBalanced([p], LR, w.average.momentum, nesterov=w.average.nesterov).step


def nvidia(w: BalanceWorkload, gradient: torch.Tensor) -> Run:
    from emerging_optimizers.embedding_optimizers import Sinkhorn

    return Sinkhorn([parameter(gradient)], LR, w.average.momentum).step


def axolotl(w: BalanceWorkload, gradient: torch.Tensor) -> Run:
    """With its fused kernel."""
    from axolotl.utils.optimizers.sinkgd import SinkGD as Other

    group = {"params": [parameter(gradient)], "use_sinkgd": True}
    return Other([group], LR, sinkgd_lr_scale=1.0, sinkgd_fused_kernel=True).step


KERNELS = "sinkhorn_balance"
Make = Callable[[BalanceWorkload, torch.Tensor], Run]
CALLS: dict[str, Make] = {
    KERNELS: lambda w, u: partial(sinkhorn_balance, u, **w.options),
    "definition": lambda w, u: partial(definition, u, **w.options),
    "sinkgd": lambda w, u: partial(sinkgd, u, **w.options),
    "definition, compiled": lambda w, u: partial(compiled(definition), u, **w.options),
    "sinkgd, compiled": lambda w, u: partial(compiled(sinkgd), u, **w.options),
}
STEPS: dict[str, Make] = {
    "optimizer": optimizer,
    "composed": lambda w, g: plain(step_of(sinkhorn_balance, w), w, g),
    "step formula": lambda w, g: plain(step_of(definition, w), w, g),
    "step formula, compiled": lambda w, g: plain(compiled(step_of(definition, w)), w, g),
    "emerging_optimizers": nvidia,
    "axolotl": axolotl,
}
FUNCTIONS = {**CALLS, **STEPS}
NAMES = tuple(FUNCTIONS)


@dataclass(frozen=True)
class Job(jobs.Job):
    """A function on one update, with each share of masked rows."""

    function: str
    workload: BalanceWorkload
    device: str = "cuda"
    rows_at_most: int = 1 << 30

    @property
    def title(self) -> str:
        return f"balance: {self.function}, {self.workload.name}"

    def left_out(self) -> list[Row]:
        w = self.workload
        masks = MASKED if self.function == KERNELS and w.settings.zero_row_threshold else (0.0,)
        section = {} if w.average is None else {"section": "step"}
        at = {**section, "function": self.function, "shape": f"{self.m} x {w.n}", "dtype": str(w.dtype)[6:]}
        return [{**at, "masked": share} for share in masks]

    @property
    def m(self) -> int:
        return min(self.workload.batch, self.rows_at_most)

    def rows(self) -> Iterator[Row | None]:
        w, device = self.workload, torch.device(self.device)
        update = torch.randn(self.m, w.n, device=device, dtype=w.dtype)
        function = FUNCTIONS[self.function](w, update)
        function()
        yield None
        copy = microseconds(lambda: partial(torch.empty_like(update).copy_, update), device)
        generator = torch.Generator(device).manual_seed(0)
        places = torch.rand(self.m, device=device, generator=generator)
        for at in self.left_out():
            update[places < at["masked"]] = 0.0
            times = {"us": microseconds(lambda: function, device), "us_copy": copy}
            over = round(times["us"] / (floor(w, at["masked"]) * copy), 3)
            yield {**at, **times, "x_floor": over, **timing.conditions(device)}
            memory.clear()


def floor(w: BalanceWorkload, masked: float) -> float:
    """Copies of the matrix that the passes are: reads and writes, halved.

    A read for the norms, one for each row step, and a write; of a step, the average's reads and writes in
    place of the norms, and the weight that is read and written in place of the result.
    """
    row_steps = len(range(w.settings.first != "rows", w.settings.steps, 2))
    last = w.settings.steps % 2 == (w.settings.first == "rows")
    reads = row_steps + (not last) + (w.settings.first != "rows")
    norms, moved, average = w.settings.zero_row_threshold > 0, 1.0, w.average
    if average is not None:
        norms = 3 + average.nesterov if average.momentum > 0 else norms
        moved = 2 * (1 - masked)
    return (norms + reads * (1 - masked) + moved) / 2


def cases() -> list[BalanceWorkload]:
    """Calls, and the steps that are tuned."""
    steps = [w for w in tagged("tune", BalanceWorkload) if w.average is not None]
    return [*tagged("bench", BalanceWorkload), *steps]


def names(w: BalanceWorkload) -> list[str]:
    """The functions that compute a case; of steps NVIDIA's has momentum, axolotl's has none."""
    if w.average is None:
        return [n for n in CALLS if n.startswith("sinkgd") <= (w.settings.zero_row_threshold == 0)]
    other = "axolotl" if w.average.momentum > 0 else "emerging_optimizers"
    return [name for name in STEPS if name != other]


def microseconds(make: Callable[[], Run], device: torch.device) -> float:
    """A replay of a CUDA graph of one call; on a CPU one call."""
    if not timing.captures(device):
        return timing.eager(make(), device, 0.1)[0]
    run, stream = timing.ready(make)
    return timing.waited_for(captured(run, stream=stream), device)


def waves(options: argparse.Namespace) -> list[list[Job]]:
    return [
        [
            Job(name, w, options.device, options.rows)
            for name in names(w)
            if not options.only or name in options.only
        ]
        for w in cases()
    ]
