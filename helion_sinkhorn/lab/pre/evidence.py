"""EVIDENCE of hc_pre: the collapsed stream or its norm, and gradients, within what one rounding allows.

An element of the batch is a group of tokens: each has a gradient of the norm's weight of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Choices, Evidence, Results, Tensors, by_elements, paths
from helion_sinkhorn.lab.pre import budget
from helion_sinkhorn.lab.pre.normed import budget as normed_budget
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.pre import eager, launch
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.pre.normed import eager as normed_eager
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed_launch
from helion_sinkhorn.ops.mhc.pre.space import PreCall

VALUES = "y", "u"
COMPUTES = {
    launch.FORWARD: ("y",),
    launch.BACKWARD: ("dx", "dpre"),
    normed_launch.FORWARD: ("u",),
    normed_launch.BACKWARD: ("dx", "dpre", "dweight"),
}


def kernel_calls(workload: HcPreWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    yield from ((name, call) for name in (normed_launch.KERNELS if workload.y_norm else launch.KERNELS))


def of_call(kernel: str, call: PreCall, tokens: int) -> HcPreWorkload:
    dtype, y_norm = getattr(torch, call.dtype), kernel in normed_launch.KERNELS
    return HcPreWorkload(*TRIED, call.n, call.columns, tokens, dtype, y_norm=y_norm)


def results(workload: HcPreWorkload) -> tuple[str, ...]:
    return normed_budget.RESULTS if workload.y_norm else budget.RESULTS


def inputs(workload: HcPreWorkload, steps: int, **drawn: Any) -> Tensors:
    """x, pre and the upstream gradient, and a norm's weight once for each element."""
    x, pre, dy, *weight = workload.make_inputs(**drawn)
    return x, pre, dy, *(t.expand(len(x), -1) for t in weight)


def dtype_of(workload: HcPreWorkload, name: str) -> torch.dtype:
    if name == "dweight":
        return torch.float32
    return workload.coefficients if name == "dpre" else workload.dtype


def truths(workload: HcPreWorkload, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    of, eps = (normed_budget, (workload.norm_eps,)) if workload.y_norm else (budget, ())
    budgets = of.error_budget(*given, *eps)
    # products and sums round to nearest: no side is preferred, and no two entries share a rounding, but the
    # entries of a token share its norm
    return {
        name: Truth.of(
            t, budgets[name], dtype_of(workload, name), gradient=name not in VALUES,
            together=(-2, -1) if workload.y_norm and name == "dx" else (-1,),
        )
        for name, t in of.exact(*given, *eps).items()
    }  # fmt: skip


def run(
    workload: HcPreWorkload, choices: Choices | None, of: Collection[str], *given: torch.Tensor
) -> Results:
    """By a call for all elements, which share a norm's weight; its gradient by a call for each."""
    value, *gradients = results(workload)
    modules, norm, of_norm = (eager, launch), (), ()
    if workload.y_norm:
        modules, norm = (normed_eager, normed_launch), (given[3][0], workload.norm_eps)
        of_norm = *norm, given[0].dtype
    forward, backward = paths(choices, *modules)

    def compute(at: slice) -> Results:
        x, pre, dy = (t[at] for t in given[:3])
        tensors = {value: forward(x, pre, *norm)} if value in of else {}
        if {*of} - {value}:
            tensors |= dict(zip(gradients, backward(dy, x, pre, *of_norm), strict=True))
        if "dweight" in tensors:
            tensors["dweight"] = tensors["dweight"].view(1, 1, -1)
        return tensors

    return by_elements(compute, len(given[0]), of, ("dweight",))


def call_public(workload: HcPreWorkload, empty: Callable[..., torch.Tensor]) -> None:
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    weight = empty(workload.c) if workload.y_norm else None
    options = {"y_norm_weight": weight, "implementation": "helion", **workload.options}
    hc_pre(x, empty(workload.batch, workload.n), **options)


EVIDENCE = Evidence(
    "hc_pre",
    HcPreWorkload,
    launch.KERNELS | normed_launch.KERNELS,
    COMPUTES,
    kernel_calls,
    of_call,
    results,
    inputs,
    truths,
    run,
    call_public,
    same_bits=frozenset({*budget.RESULTS, *normed_budget.RESULTS} - {"dweight"}),
    fixed=("tokens", "coefficients", "norm_eps"),
)
