"""TRIALS: how each kernel is run by itself, by the tuner on a GPU and by the offline compiler on nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn import implicit
from helion_sinkhorn.kernels import TUNED_EPS, Call, Choice, launch
from helion_sinkhorn.testing import Case, half_ulp, worst
from helion_sinkhorn.workloads import Workload, make_cotangents, make_logits

Tensors = tuple[torch.Tensor, ...]
Programs = Iterator[tuple[str, Any]]
"""(kernel, its call), one for each kernel that a workload is served by."""
JUDGED = ("randn_1", "randn_3")
"""Logits on which an error is taken."""


@dataclass(frozen=True)
class Trial:
    """One row of TRIALS."""

    operands: Callable[[Any, int, str], Tensors]
    """(call, batch, device) -> what the kernel reads; of device "meta" only their layout is asked."""
    run: Callable[..., torch.Tensor | Tensors]
    """(call, choice, *operands, **options) -> what it writes, from `kernels.launch`."""
    error: Callable[[Any, Choice, str], float]
    """(call, choice, device) -> the largest error in units of its budget: above 1 the choice is wrong."""


@functools.singledispatch
def programs(workload: Any) -> Programs:
    """The kernels that serve a row of WORKLOADS, each with its call."""
    raise TypeError(f"no kernels are known to serve a {type(workload).__name__}")


def noise(device: str, dtype: str, *shapes: tuple[int, ...]) -> Tensors:
    """Standard normal tensors, the same for the same shapes."""
    generator = None if device == "meta" else torch.Generator(device).manual_seed(0)
    drawn = (torch.randn(shape, device=device, generator=generator) for shape in shapes)
    return tuple(t.to(getattr(torch, dtype)) for t in drawn)


def bytes_of(*tensors: torch.Tensor) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def few(call: Call) -> int:
    """Matrices that are enough to judge; a multiple of 16, as timed batches are: others compile anew."""
    return max(16, min(64, 4096 // (call.n * call.m)))


# -------------------------------------------------------------------------------------------- Sinkhorn


@programs.register
def _(workload: Workload) -> Programs:
    if workload.backward == "implicit":
        call = launch.implicit_call(workload.n, workload.m, workload.dtype, workload.n_iters)
        yield launch.implicit_kernel("auto", call), call
    else:
        call = launch.call_for(workload.n, workload.m, workload.dtype, *workload.arguments)
        yield "sinkhorn_forward", call
        yield launch.backward_kernel(call), call


def one_matrix(call: Call, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, (batch, call.n, call.m))


def two_matrices(call: Call, batch: int, device: str) -> Tensors:
    return noise(device, call.dtype, *[(batch, call.n, call.m)] * 2)


def p_and_gradient(call: Call, batch: int, device: str) -> Tensors:
    x, dy = two_matrices(call, batch, device)
    return x.softmax(-1), dy


def run_forward(call: Call, choice: Choice, x: torch.Tensor, eps: float = TUNED_EPS) -> torch.Tensor:
    return launch.forward(x, call.n_iters, eps, call.form, call.first, x.dtype, choice)


def run_backward(
    call: Call, choice: Choice, x: torch.Tensor, dy: torch.Tensor, eps: float = TUNED_EPS
) -> torch.Tensor:
    return launch.backward(dy, x, call.n_iters, eps, call.form, call.first, choice)


def run_implicit(
    call: Call, choice: Choice, p: torch.Tensor, dy: torch.Tensor, system: str = "corrected"
) -> torch.Tensor:
    solver = choice.kernel.rsplit("_", 1)[1]
    return launch.implicit_backward(dy, p, call.n_iters, system, solver, p.dtype, choice)


def cases(call: Call) -> Iterator[Case]:
    for logits in JUDGED:
        yield Case(
            logits, call.n, call.m, call.n_iters, call.form, call.first, few(call), TUNED_EPS,
            getattr(torch, call.dtype),
        )  # fmt: skip


def forward_error(call: Call, choice: Choice, device: str) -> float:
    ratios = [case.judge(p=run_forward(call, choice, case.inputs(device)[0])) for case in cases(call)]
    return max(r["P"] for r in ratios)


def backward_error(call: Call, choice: Choice, device: str) -> float:
    ratios = [case.judge(dx=run_backward(call, choice, *case.inputs(device))) for case in cases(call)]
    return max(r["dX"] for r in ratios)


def implicit_error(call: Call, choice: Choice, device: str) -> float:
    """Against the same solver in float64 from the same P; the bound is derived in docs/math.md."""
    ratios = []
    for logits in JUDGED:
        x = make_logits(logits, few(call), call.n, call.m)
        p, dy = x.softmax(-1).to(getattr(torch, call.dtype)), make_cotangents(x)
        p64, dy64 = p.double(), dy.double()
        solver = choice.kernel.rsplit("_", 1)[1]
        expected = implicit.backward(dy64, p64, call.n_iters, "corrected", solver, torch.float64)
        budget = 36 * call.m * 2.0**-24 * dy64.abs().amax() + half_ulp(expected, p.dtype)
        ratios.append(worst(run_implicit(call, choice, p.to(device), dy.to(device)), expected, budget))
    return max(ratios)


TRIALS = {
    "sinkhorn_forward": Trial(one_matrix, run_forward, forward_error),
    "sinkhorn_backward": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_backward_history": Trial(two_matrices, run_backward, backward_error),
    "sinkhorn_implicit_direct": Trial(p_and_gradient, run_implicit, implicit_error),
    "sinkhorn_implicit_cg": Trial(p_and_gradient, run_implicit, implicit_error),
}
