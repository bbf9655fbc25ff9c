"""hc_pre as the gate judges it: the collapsed stream and both gradients within what one rounding allows."""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn.lab.pre import budget
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.ops.mhc.pre import eager
from helion_sinkhorn.runtime.launch import device_of

COMPUTES = {"hc_pre_forward": ("y",), "hc_pre_backward": ("dx", "dpre")}
"""The results of each kernel."""


def inputs(workload: HcPreWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """x, pre and the upstream gradient."""
    return workload.make_inputs()


def dtype_of(workload: HcPreWorkload, name: str) -> torch.dtype:
    return workload.coefficients if name == "dpre" else workload.dtype


def truths(workload: HcPreWorkload, x, pre, dy) -> dict[str, gate.Truth]:
    """The equations in float64."""
    exact, budgets = budget.exact(x, pre, dy), budget.error_budget(x, pre, dy)
    found = {}
    for name, t in exact.items():
        dtype = dtype_of(workload, name)
        scale = gate.noticeable(t) if name == "y" else gate.largest(t)
        spread = gate.spread(t, budgets[name], dtype)
        # products and sums round to nearest: no side is preferred, and no two entries share a rounding
        found[name] = gate.Truth(t, budgets[name], spread, scale, 0.0, len(t), (-1,), dtype)
    return found


def candidates(workload: HcPreWorkload, x, pre, dy) -> list[gate.Candidate]:
    """Both kernels with each of their configs; on a CPU the CPU path."""
    if not x.is_cuda:
        return choices.on_cpu(budget.RESULTS, on_cpu)
    from helion_sinkhorn.ops.mhc.pre import launch

    call = launch.call_for(workload.n, workload.c, workload.dtype)
    return choices.candidates(
        COMPUTES, call, len(x) * workload.tokens, device_of(x),
        lambda name, choice: functools.partial(on_gpu, name, choice),
    )  # fmt: skip


def on_cpu(name: str, *given: torch.Tensor) -> torch.Tensor:
    return computed(eager.forward, eager.backward, *given)[name]


def on_gpu(name: str, choice: object, *given: torch.Tensor) -> torch.Tensor:
    from helion_sinkhorn.ops.mhc.pre import launch

    if name in COMPUTES[launch.FORWARD]:
        return computed(functools.partial(launch.forward, choice=choice), None, *given)[name]
    return computed(None, functools.partial(launch.backward, choice=choice), *given)[name]


def computed(forward, backward, x, pre, dy) -> gate.Results:
    """The results of these, by a call for all elements."""
    found = {"y": forward(x, pre)} if forward else {}
    if backward:
        found |= dict(zip(("dx", "dpre"), backward(dy, x, pre), strict=True))
    return found
