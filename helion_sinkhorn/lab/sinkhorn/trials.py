"""Trials of the Sinkhorn kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.draws import make_cotangents
from helion_sinkhorn.lab.operator import Tensors, Trial, noise
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.sinkhorn.budget import Case
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn import launch
from helion_sinkhorn.ops.sinkhorn.api import sinkhorn
from helion_sinkhorn.ops.sinkhorn.implicit import launch as implicit_launch
from helion_sinkhorn.ops.sinkhorn.space import TUNED_EPS, SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice

JUDGED = ("randn_1", "randn_3")
"""Logits on which an error is taken."""


def few(call: SinkhornCall) -> int:
    """Matrices that are enough to judge; a multiple of 16, as timed batches are: others compile anew."""
    return max(16, min(64, 4096 // (call.n * call.m)))


def one_matrix(call: SinkhornCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.n, call.m))


def two_matrices(call: SinkhornCall, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.n, call.m)] * 2)


def p_and_gradient(call: SinkhornCall, batch: int, device: str) -> Tensors:
    x, dy = two_matrices(call, batch, device)
    return x.softmax(-1), dy


def run_forward(call: SinkhornCall, choice: Choice, x: torch.Tensor, eps: float = TUNED_EPS) -> torch.Tensor:
    return launch.forward(x, call.n_iters, eps, call.form, call.first, x.dtype, choice)


def run_backward(
    call: SinkhornCall, choice: Choice, x: torch.Tensor, dy: torch.Tensor, eps: float = TUNED_EPS
) -> torch.Tensor:
    return launch.backward(dy, x, call.n_iters, eps, call.form, call.first, choice)


def run_implicit(call: SinkhornCall, choice: Choice, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    solver = choice.kernel.rsplit("_", 1)[1]
    return implicit_launch.implicit_backward(dy, p, call.n_iters, "corrected", solver, p.dtype, choice)


def cases(call: SinkhornCall) -> Iterator[Case]:
    for logits in JUDGED:
        yield Case(
            logits, call.n, call.m, call.n_iters, call.form, call.first, few(call), TUNED_EPS,
            getattr(torch, call.dtype),
        )  # fmt: skip


def forward_error(call: SinkhornCall, choice: Choice, device: str) -> float:
    ratios = [case.judge(p=run_forward(call, choice, case.inputs(device)[0])) for case in cases(call)]
    return max(r["P"] for r in ratios)


def backward_error(call: SinkhornCall, choice: Choice, device: str) -> float:
    ratios = [case.judge(dx=run_backward(call, choice, *case.inputs(device))) for case in cases(call)]
    return max(r["dX"] for r in ratios)


def implicit_error(call: SinkhornCall, choice: Choice, device: str) -> float:
    """By the equations of stationarity at the same P, within what the solver can do (docs/dev/math.md)."""
    ratios = []
    for logits in JUDGED:
        x = make_logits(logits, few(call), call.n, call.m)
        p, dy = x.softmax(-1).to(getattr(torch, call.dtype)), make_cotangents(x)
        equations = Stationarity(p, dy, "corrected")
        budget = equations.error_budget(choice.kernel.rsplit("_", 1)[1], p.dtype)
        ratios.append(worst(run_implicit(call, choice, p.to(device), dy.to(device)), equations.exact, budget))
    return max(ratios)


def kernel_calls(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    """(kernel, its call), one for each kernel that a workload runs."""
    if workload.backward == "implicit":
        call = implicit_launch.implicit_call(workload.n, workload.m, workload.dtype, workload.n_iters)
        yield implicit_launch.implicit_kernel("auto", call), call
    else:
        call = launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)
        yield "sinkhorn_forward", call
        yield launch.backward_kernel(call), call


def call_public(workload: SinkhornWorkload, empty: Callable[..., torch.Tensor]) -> None:
    """Call the public function, for its checks, on tensors that `empty(*shape, dtype=...)` makes."""
    if workload.n_iters == 0:
        raise NotImplementedError("n_iters is 0, which is exp(logits) and no kernel")
    logits = empty(workload.batch, workload.n, workload.m, dtype=workload.dtype)
    sinkhorn(logits, implementation="helion", **workload.options)


TRIALS = {
    "sinkhorn_forward": Trial(one_matrix, run_forward, forward_error),
    "sinkhorn_backward": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_backward_history": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_implicit_direct": Trial(p_and_gradient, run_implicit, implicit_error),
    "sinkhorn_implicit_cg": Trial(p_and_gradient, run_implicit, implicit_error),
}
