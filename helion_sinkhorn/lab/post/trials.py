"""Trials of the hc_post kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.post.budget import error_budget, exact
from helion_sinkhorn.lab.post.workloads import HcPostWorkload
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.ops.mhc.post import launch
from helion_sinkhorn.ops.mhc.post.api import hc_post
from helion_sinkhorn.ops.mhc.post.space import PostCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED_TOKENS = 16


def streams_and_coefficients(call: PostCall, batch: int, device: str) -> Tensors:
    n, c = call.n, call.columns
    f, x = noise(device, call.dtype, (batch, c), (batch, n, c))
    return f, x, *noise(device, "float32", (batch, n), (batch, n, n))


def with_gradient(call: PostCall, batch: int, device: str) -> Tensors:
    (grad,) = noise(device, call.dtype, (batch, call.n, call.columns))
    return grad, *streams_and_coefficients(call, batch, device)


def run_forward(call: PostCall, choice: Choice, f, x, post, comb) -> torch.Tensor:
    return launch.forward(f, x, post, comb, None, "io", choice)


def run_backward(call: PostCall, choice: Choice, grad, f, x, post, comb) -> Tensors:
    return launch.backward(grad, f, x, post, comb, None, "io", choice)


def judged(call: PostCall) -> Tensors:
    """(f, x, post, comb, upstream gradient) of a workload of this call."""
    workload = HcPostWorkload(
        "tried", 1, frozenset(), "a trial", call.n, call.columns, JUDGED_TOKENS, getattr(torch, call.dtype)
    )
    *given, _bias, grad = workload.make_inputs()
    return *given, grad


def forward_error(call: PostCall, choice: Choice, device: str) -> float:
    inputs = judged(call)
    streams = run_forward(call, choice, *(t.to(device) for t in inputs[:4]))
    return error(inputs, {"out": streams})


def backward_error(call: PostCall, choice: Choice, device: str) -> float:
    inputs = judged(call)
    *given, grad = inputs
    made = run_backward(call, choice, grad.to(device), *(t.to(device) for t in given))
    return error(inputs, dict(zip(("df", "dx", "dpost", "dcomb"), made, strict=True)))


def error(inputs, found: dict[str, torch.Tensor]) -> float:
    """The largest error of these results in units of its budget."""
    truth, budgets = exact(*inputs), error_budget(*inputs)
    return max(worst(t, truth[name], budgets[name]) for name, t in found.items())


def kernel_calls(workload: HcPostWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    yield launch.FORWARD, call
    yield launch.BACKWARD, call


def call_public(workload: HcPostWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    batch, n, c, dtype = workload.batch, workload.n, workload.c, workload.dtype
    streams = empty(batch, c, dtype=dtype), empty(batch, n, c, dtype=dtype)
    hc_post(*streams, empty(batch, n), empty(batch, n, n), implementation="helion", **workload.options)


TRIALS = {
    launch.FORWARD: Trial(streams_and_coefficients, run_forward, forward_error),
    launch.BACKWARD: Trial(with_gradient, run_backward, backward_error),
}
"""The calls of `hc_post`."""
