"""EVIDENCE of hc_pre: the collapsed stream or its norm, and gradients, within what one rounding allows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Choices, Evidence, Results, Tensors, paths
from helion_sinkhorn.lab.pre.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.pre.normed import evidence as normed
from helion_sinkhorn.lab.pre.normed.budget import RESULTS as NORMED_RESULTS
from helion_sinkhorn.lab.pre.normed.evidence import dtype_of
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.pre import eager, launch
from helion_sinkhorn.ops.mhc.pre.api import hc_pre
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed_launch
from helion_sinkhorn.ops.mhc.pre.space import PreCall


def kernel_calls(workload: HcPreWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.c, workload.dtype)
    yield from ((name, call) for name in (normed_launch.KERNELS if workload.y_norm else launch.KERNELS))


def of_call(kernel: str, call: PreCall, tokens: int) -> HcPreWorkload:
    dtype, y_norm = getattr(torch, call.dtype), kernel in normed_launch.KERNELS
    return HcPreWorkload(*TRIED, call.n, call.columns, tokens, dtype, y_norm=y_norm)


def results(workload: HcPreWorkload) -> tuple[str, ...]:
    return NORMED_RESULTS if workload.y_norm else RESULTS


def inputs(workload: HcPreWorkload, steps: int, **drawn: Any) -> Tensors:
    """x, pre and the upstream gradient, and a norm's weight."""
    return normed.inputs(workload, **drawn) if workload.y_norm else workload.make_inputs(**drawn)


def truths(workload: HcPreWorkload, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    if workload.y_norm:
        return normed.truths(workload, *given)
    # products and sums round to nearest: no side is preferred, and no two entries share a rounding
    budgets = error_budget(*given)
    return {
        name: Truth.of(t, budgets[name], dtype_of(workload, name), gradient=name != "y")
        for name, t in exact(*given).items()
    }


def run(workload: HcPreWorkload, choices: Choices | None, of: Collection[str], *given) -> Results:
    """By a call for all elements."""
    if workload.y_norm:
        return normed.run(workload, choices, of, *given)
    x, pre, dy = given
    forward, backward = paths(choices, eager, launch)
    found = {"y": forward(x, pre)} if "y" in of else {}
    if {"dx", "dpre"} & {*of}:
        found |= dict(zip(("dx", "dpre"), backward(dy, x, pre), strict=True))
    return {name: found[name] for name in of}


def call_public(workload: HcPreWorkload, empty: Callable[..., torch.Tensor]) -> None:
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    weight = empty(workload.c) if workload.y_norm else None
    options = {"y_norm_weight": weight, "implementation": "helion", **workload.options}
    hc_pre(x, empty(workload.batch, workload.n), **options)


EVIDENCE = Evidence(
    "hc_pre",
    HcPreWorkload,
    launch.KERNELS | normed_launch.KERNELS,
    {launch.FORWARD: ("y",), launch.BACKWARD: ("dx", "dpre"), **normed.COMPUTES},
    kernel_calls,
    of_call,
    results,
    inputs,
    truths,
    run,
    call_public,
    same_bits=frozenset({*RESULTS, *NORMED_RESULTS} - {"dweight"}),
    fixed=("tokens", "coefficients", "norm_eps"),
)
