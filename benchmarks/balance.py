"""Jobs of `benchmarks.bench balance`: updates balanced by kernels, and by formulas of optimizers in PyTorch;
and whole steps of optimizers, by the functions of `benchmarks.balance_steps`.

us are medians of one replay of a CUDA graph of one call, for which the device waits.  The floor is what the
passes of the kernels read and write, at the rate of a copy of the same matrix: the update for the norms, its
rows that are not masked for each row step, and one write.  A step reads gradient and average and writes the
average and what is balanced in place of the norms, and reads and writes the weight at its end.  "definition"
is algorithm 1 of DeepSeek-V4.1 in float32, as NVIDIA's Emerging-Optimizers has it, and "sinkgd" is rounded to
the dtype of the update in each step, as axolotl has it (beside kernels of its own); both are written from
their equations.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch

from benchmarks import balance_steps, memory, timing
from benchmarks.jobs import Row
from helion_sinkhorn import sinkhorn_balance
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.tuning.timing import Run, captured, timed
from helion_sinkhorn.lab.workloads import tagged

FILE, WORKERS = "balance.csv", 3
"""The functions of one workload get ready side by side: five matrices in float32 each, at most."""
FIRST_COLUMNS = "section", "function", "shape", "dtype", "masked", "us", "us_copy", "x_floor", "note"
REPEATS = 9
MASKED = 0.0, 0.5, 0.9, 0.99
"""Shares of masked rows."""


def sinkgd(update: torch.Tensor, steps: int = 10, eps: float = 1e-20, **options) -> torch.Tensor:
    """SinkGD: rows and columns in turn to a root mean square of 1, each step rounded."""
    for k in range(steps):
        axis = -1 - k % 2
        norm = update.float().norm(dim=axis, keepdim=True)
        update = (update * (math.sqrt(update.size(axis)) / (norm + eps))).to(update.dtype)
    return update


PLAIN: dict[str, Callable[..., torch.Tensor]] = {"definition": balance_steps.definition, "sinkgd": sinkgd}
KERNELS = "sinkhorn_balance"
FUNCTIONS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    KERNELS: lambda: sinkhorn_balance,
    **{name: lambda f=f: f for name, f in PLAIN.items()},
    **{f"{name}, compiled": lambda f=f: torch.compile(f, dynamic=False) for name, f in PLAIN.items()},
}
NAMES = (*FUNCTIONS, *balance_steps.FUNCTIONS)


@dataclass(frozen=True)
class Job:
    """A function on one update, with each share of masked rows."""

    prepare_seconds: ClassVar[float] = 300.0
    function: str
    workload: str
    device: str = "cuda"
    rows_at_most: int = 1 << 30

    @property
    def case(self) -> BalanceWorkload:
        return next(w for w in cases() if w.name == self.workload)

    @property
    def title(self) -> str:
        return f"balance: {self.function}, {self.workload}"

    def left_out(self) -> list[Row]:
        w = self.case
        masks = MASKED if self.function == KERNELS and w.settings.zero_row_threshold else (0.0,)
        section = {} if w.average is None else {"section": "step"}
        at = {**section, "function": self.function, "shape": f"{self.m} x {w.n}", "dtype": str(w.dtype)[6:]}
        return [{**at, "masked": share} for share in masks]

    @property
    def m(self) -> int:
        return min(self.case.batch, self.rows_at_most)

    def rows(self) -> Iterator[Row | None]:
        w, device = self.case, torch.device(self.device)
        update = torch.randn(self.m, w.n, device=device, dtype=w.dtype)
        if w.average is None:
            function = partial(FUNCTIONS[self.function](), update, **w.options)
        else:
            function = balance_steps.FUNCTIONS[self.function](w, update)
        function()
        yield None
        copy = microseconds(lambda: partial(torch.empty_like(update).copy_, update), device)
        generator = torch.Generator(device).manual_seed(0)
        places = torch.rand(self.m, device=device, generator=generator)
        for at in self.left_out():
            update[places < at["masked"]] = 0.0
            found = {"us": microseconds(lambda: function, device), "us_copy": copy}
            over = round(found["us"] / (floor(w, at["masked"]) * copy), 3)
            yield {**at, **found, "x_floor": over, **timing.conditions(device)}
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


def names(w: BalanceWorkload) -> tuple[str, ...]:
    """The functions that compute a case."""
    if w.average is not None:
        return tuple(balance_steps.of(w))
    return tuple(n for n in FUNCTIONS if n.startswith("sinkgd") <= (w.settings.zero_row_threshold == 0))


def microseconds(make: Callable[[], Run], device: torch.device) -> float:
    """A replay of a CUDA graph of one call; on a CPU one call."""
    if not timing.captures(device):
        return timing.eager(make(), device, 0.1)[0]
    run, stream = timing.ready(make)
    replay = captured(run, stream=stream)
    return statistics.median(timed(replay) for _ in range(REPEATS))


def waves(options: argparse.Namespace) -> list[list[Job]]:
    return [
        [
            Job(name, w.name, options.device, options.rows)
            for name in names(w)
            if not options.only or name in options.only
        ]
        for w in cases()
    ]
