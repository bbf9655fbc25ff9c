"""EVIDENCE of sinkhorn_balance: the balanced update within what its roundings allow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.balance.budget import EXACT, RESULTS, evaluated, limits, results, size_of
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Choices, Evidence, Results, Tensors, all_inputs
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.balance import eager, launch
from helion_sinkhorn.ops.balance.api import sinkhorn_balance
from helion_sinkhorn.ops.balance.launch import Launches
from helion_sinkhorn.ops.balance.passes import Average, balance, step
from helion_sinkhorn.ops.balance.space import BalanceCall
from helion_sinkhorn.runtime.kernel import Choice

OF_STEPS = launch.MOMENTUM, launch.UPDATE


def kernel_calls(workload: BalanceWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.dtype)
    settings, average = workload.settings, workload.average
    if average is not None and average.momentum > 0:
        yield launch.MOMENTUM, call
    elif settings.zero_row_threshold > 0:
        yield launch.NORMS, call
    if settings.steps > (settings.first == "rows"):
        yield launch.STEP, call
        yield launch.COLUMNS, launch.call_for(workload.n, torch.float32)
    yield launch.FINISH if average is None else launch.UPDATE, call


def of_call(kernel: str, call: BalanceCall, rows: int) -> BalanceWorkload:
    average = Average(0.95, True) if kernel in OF_STEPS else None
    dtype = getattr(torch, call.dtype)
    return BalanceWorkload(*TRIED, call.columns, rows, dtype, average=average)


def truths(workload: BalanceWorkload, *inputs: torch.Tensor) -> dict[str, Truth]:
    """The definition in float64."""
    exact, dtype = evaluated(workload, EXACT, *inputs), workload.dtype
    budgets = limits(exact, lambda error: evaluated(workload, error, *inputs), inputs[0].device, dtype)
    # a row's entries share its scale, and a column's its own
    return {
        name: Truth.of(t, budgets[name], dtype, gradient=False, together=(-2, -1))
        for name, t in exact.items()
    }


def run(
    workload: BalanceWorkload, choices: Choices | None, of: Collection[str], *inputs: torch.Tensor
) -> Results:
    """The results by the passes of kernels or of PyTorch, those of a step in place on copies."""
    passes, settings = eager if choices is None else Launches(choices), workload.settings
    if workload.average is None:
        (update,) = inputs
        out = torch.empty_like(update)
        balance(update.contiguous(), out, settings, [], passes)
        return {name: out for name in of}
    gradient, *moved = (t.clone(memory_format=torch.contiguous_format) for t in inputs)
    size = torch.full((1,), size_of(workload), device=gradient.device)
    step([moved[-1]], [gradient], moved[:-1], workload.average, size, settings, [], passes)
    tensors = dict(zip(results(workload), moved, strict=True))
    return {name: tensors[name] for name in of}


def call_public(workload: BalanceWorkload, empty: Callable[..., torch.Tensor]) -> None:
    update = empty(workload.batch, workload.n, dtype=workload.dtype)
    sinkhorn_balance(update, implementation="helion", **workload.options)


def rows_alone(call: BalanceCall, rows: int, device: str) -> Tensors:
    """x, c, d, and every row in its place."""
    (x,) = noise(device, call.dtype, (1, rows, call.columns))
    c, d = (torch.ones(1, k, device=device) for k in (call.columns, rows))
    order = torch.arange(rows, device=device)
    return x, c, d, order, torch.full((1,), rows, device=device)


def momentum_alone(call: BalanceCall, rows: int, device: str) -> Tensors:
    """The gradient, its average, and what Nesterov writes."""
    return noise(device, call.dtype, *[(1, rows, call.columns)] * 3)


def update_alone(call: BalanceCall, rows: int, device: str) -> Tensors:
    """x, c, d, w and the size of the step."""
    x, c, d, *_ = rows_alone(call, rows, device)
    return x, c, d, *noise(device, call.dtype, x.shape), torch.full((1,), 1e-3, device=device)


def sums_alone(call: BalanceCall, shares: int, device: str) -> Tensors:
    (sums,) = noise(device, "float32", (1, shares, call.columns))
    return sums * sums, torch.ones(1, call.columns, device=device)


def run_norms(call: BalanceCall, choice: Choice, x, *rest) -> torch.Tensor:
    return Launches({launch.NORMS: choice}).norms(x)


def run_step(call: BalanceCall, choice: Choice, x, c, d, *order) -> Tensors:
    return Launches({launch.STEP: choice}).squares(x, c, d, order, 1e-20, True, False)


def run_columns(call: BalanceCall, choice: Choice, sums, c) -> torch.Tensor:
    Launches({launch.COLUMNS: choice}).columns(sums, c, 1e-20)
    return c


def run_finish(call: BalanceCall, choice: Choice, x, c, d, *order) -> torch.Tensor:
    out = torch.empty_like(x)
    Launches({launch.FINISH: choice}).finish(x, c, d, out, 1e-20, True, 1.0)
    return out


def run_momentum(call: BalanceCall, choice: Choice, x, average, ahead) -> Tensors:
    return Launches({launch.MOMENTUM: choice}).momentum(x, average, ahead, 0.95), average, ahead


def run_update(call: BalanceCall, choice: Choice, x, c, d, w, size) -> torch.Tensor:
    Launches({launch.UPDATE: choice}).update(x, c, d, w, size, 1e-20, True)
    return w


EVIDENCE = Evidence(
    "sinkhorn_balance",
    BalanceWorkload,
    launch.KERNELS,
    {
        **dict.fromkeys((launch.NORMS, launch.STEP, launch.COLUMNS), (*RESULTS, "weight")),
        launch.FINISH: RESULTS,
        launch.MOMENTUM: ("average", "weight"),
        launch.UPDATE: ("weight",),
    },
    kernel_calls,
    of_call,
    results,
    all_inputs,
    truths,
    run,
    call_public,
    judged=80,
    alone={
        launch.NORMS: Alone(rows_alone, run_norms),
        launch.STEP: Alone(rows_alone, run_step),
        launch.COLUMNS: Alone(sums_alone, run_columns),
        launch.FINISH: Alone(rows_alone, run_finish),
        launch.MOMENTUM: Alone(momentum_alone, run_momentum),
        launch.UPDATE: Alone(update_alone, run_update),
    },
    fixed=("tokens", "settings"),
)
