"""The calls of EVIDENCE with a norm: the normalised state and its gradients.

An element of the batch is a group of tokens: each has a gradient of the norm's weight of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Choices, Results, Tensors, by_elements, paths
from helion_sinkhorn.lab.pre.normed.budget import RESULTS, error_budget, exact
from helion_sinkhorn.lab.pre.workloads import HcPreWorkload
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.pre.normed import eager, launch

COMPUTES = {launch.FORWARD: RESULTS[:1], launch.BACKWARD: RESULTS[1:]}


def inputs(workload: HcPreWorkload, **drawn: Any) -> Tensors:
    """x, pre, the upstream gradient, and the norm's weight once for each element."""
    x, pre, du, weight = workload.make_inputs(**drawn)
    return x, pre, du, weight.expand(len(x), -1)


def dtype_of(workload: HcPreWorkload, name: str) -> torch.dtype:
    if name == "dweight":
        return torch.float32
    return workload.coefficients if name == "dpre" else workload.dtype


def truths(workload: HcPreWorkload, *given: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    budgets = error_budget(*given, workload.norm_eps)
    return {
        # the entries of a token share its norm
        name: Truth.of(
            t, budgets[name], dtype_of(workload, name), gradient=name != "u",
            together=(-2, -1) if name == "dx" else (-1,),
        )
        for name, t in exact(*given, workload.norm_eps).items()
    }  # fmt: skip


def run(
    workload: HcPreWorkload, choices: Choices | None, of: Collection[str], *given: torch.Tensor
) -> Results:
    """By a call for all elements, which share a weight; dweight by a call for each."""
    forward, backward = paths(choices, eager, launch)
    norm = given[3][0], workload.norm_eps

    def compute(at: slice) -> Results:
        x, pre, du = (t[at] for t in given[:3])
        found = {"u": forward(x, pre, *norm)} if "u" in of else {}
        if {*of} - {"u"}:
            found |= dict(zip(RESULTS[1:], backward(du, x, pre, *norm, x.dtype), strict=True))
            found["dweight"] = found["dweight"].view(1, 1, -1)
        return found

    return by_elements(compute, len(given[0]), of, ("dweight",))
