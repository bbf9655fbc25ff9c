"""Trials of the hc_pre kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.pre.budget import error_budget, exact
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.pre import launch
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_TOKENS = 16


def x_and_pre(call: PreCall, batch: int, device: str) -> Tensors:
    (x,) = noise(device, call.dtype, (batch, call.n, call.columns))
    return x, *noise(device, "float32", (batch, call.n))


def with_gradient(call: PreCall, batch: int, device: str) -> Tensors:
    (dy,) = noise(device, call.dtype, (batch, call.columns))
    return dy, *x_and_pre(call, batch, device)


def run_forward(call: PreCall, choice: Choice, x, pre) -> torch.Tensor:
    return launch.forward(x, pre, choice)


def run_backward(call: PreCall, choice: Choice, dy, x, pre) -> Tensors:
    return launch.backward(dy, x, pre, choice)


def judged(call: PreCall) -> Tensors:
    """The inputs of a workload of this call."""
    workload = HcPreWorkload(
        "tried", 1, frozenset(), "a trial", call.n, call.columns, JUDGED_TOKENS, getattr(torch, call.dtype)
    )
    return workload.make_inputs()


def forward_error(call: PreCall, choice: Choice, device: str) -> float:
    x, pre, dy = judged(call)
    y = run_forward(call, choice, x.to(device), pre.to(device))
    return error((x, pre, dy), {"y": y})


def backward_error(call: PreCall, choice: Choice, device: str) -> float:
    x, pre, dy = judged(call)
    dx, dpre = run_backward(call, choice, dy.to(device), x.to(device), pre.to(device))
    return error((x, pre, dy), {"dx": dx, "dpre": dpre})


def error(inputs: Tensors, found: dict[str, torch.Tensor]) -> float:
    """The largest error of these results in units of its budget."""
    truth, budgets = exact(*inputs), error_budget(*inputs)
    return max(worst(t, truth[name], budgets[name]) for name, t in found.items())


def kernel_calls(workload: HcPreWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    yield launch.FORWARD, call
    yield launch.BACKWARD, call


def call_public(workload: HcPreWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    hc_pre(x, empty(workload.batch, workload.n), implementation="helion")


TRIALS = {
    launch.FORWARD: Trial(x_and_pre, run_forward, forward_error),
    launch.BACKWARD: Trial(with_gradient, run_backward, backward_error),
}
"""The calls of `hc_pre`."""
