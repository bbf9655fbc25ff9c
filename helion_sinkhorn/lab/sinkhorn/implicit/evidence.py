"""The implicit gradient of EVIDENCE, tested by its own equations at a given P and not by the exact gradient.

The results are "implicit dX (direct)" and "implicit dX (cg)", the corrected system within each solver's
budget, and the systems for comparison, which are tested near a fixed point only.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.evidence import Choices, Results, Tensors
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.lab.truth import SYSTEMATIC_MATRICES, Systematic, Truth, bias, judged, largest, spread
from helion_sinkhorn.ops.sinkhorn.implicit import eager, launch
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps, marginal_error

JUDGED = {
    "implicit dX (direct)": ("corrected", "direct"),
    "implicit dX (cg)": ("corrected", "cg"),
    "implicit dX (reduced)": ("reduced", "cg"),
    # eliminating the rows of the full system leaves the reduced one
    "implicit dX (reduced, direct)": ("reduced", "direct"),
    "implicit dX (full)": ("full", "cg"),
}
"""The system behind each result and its solver."""
CORRECTED = tuple(JUDGED)[:2]
COMPARED = frozenset(JUDGED) - {*CORRECTED}
COMPUTES = {
    f"sinkhorn_implicit_{kernel}": tuple(name for name, (_, solver) in JUDGED.items() if solver == kernel)
    for kernel in ("direct", "cg")
}
NEAR = 1e-2
"""Largest median of the marginal error at which "reduced" and "full" are tested: they are right at a fixed
point, and away from it their matrix may be indefinite."""
FEW = 64
"""The number of matrices whose median is taken."""


def call_of(workload: SinkhornWorkload) -> Any:
    return launch.implicit_call(workload.n, workload.m, workload.dtype, workload.n_iters)


def kernel_calls(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    call = call_of(workload)
    yield launch.implicit_kernel("auto", call), call


def spare(workload: SinkhornWorkload) -> Iterator[tuple[str, Any]]:
    """The other solver."""
    call = call_of(workload)
    return ((name, call) for name in launch.KERNELS if name != launch.implicit_kernel("auto", call))


def inputs(workload: SinkhornWorkload, steps: int, **drawn: Any) -> Tensors:
    """P, rounded once from float64, and upstream gradients."""
    k = judged(workload, steps)
    x, dy = (t[:k] for t in workload.make_inputs(**drawn))
    n_iters, eps, form, first = workload.arguments
    p = reference.sinkhorn(x.double(), n_iters, eps=eps, form=form, first=first)
    return p.to(workload.dtype), dy


@functools.lru_cache(maxsize=64)
def results(workload: SinkhornWorkload) -> tuple[str, ...]:
    """The results that a call has."""
    n, m = workload.n, workload.m
    if n != m:
        return CORRECTED
    p, _ = inputs(workload, FEW * n * m * workload.n_iters)
    if marginal_error(p).median() > NEAR:
        return CORRECTED
    # with fewer steps than unknowns conjugate gradients need not have ended
    unknowns = {"reduced": m, "full": n + m}
    return tuple(
        name
        for name, (system, _) in JUDGED.items()
        if system == "corrected" or cg_steps(system, n, m, workload.n_iters) == unknowns[system]
    )


def truths(workload: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> dict[str, Truth]:
    """The equations solved in float64 from the same P."""
    # a system for comparison has one limit, whatever solves it
    limits = {name: (system, solver if system == "corrected" else "cg")
              for name, (system, solver) in JUDGED.items() if name in results(workload)}  # fmt: skip
    made = {limit: truth(workload, p, dy, *limit) for limit in dict.fromkeys(limits.values())}
    return {name: made[limit] for name, limit in limits.items()}


def truth(workload: SinkhornWorkload, p, dy, system: str, solver: str) -> Truth:
    """The gradient by a system within what a solver can do."""
    equations = Stationarity(p, dy, system)
    exact, budget = equations.exact, equations.error_budget(solver, workload.dtype)
    spreads = spread(exact, budget, workload.dtype)
    few = slice(SYSTEMATIC_MATRICES)
    sample = Stationarity(p[few], dy[few], system)
    drawn = (sample.perturbed(solver, Systematic(seed)) for seed in range(rounding.SAMPLES))
    systematic = max(abs(bias(t, exact[few], spreads[few])) for t in drawn)
    # matrices that share their P share its rounding errors
    distinct = len(torch.unique(p, dim=0))
    # the unknowns of a matrix carry an error to all its entries
    return Truth(exact, budget, spreads, largest(exact), systematic, distinct, (-2, -1), workload.dtype)


def run(workload: SinkhornWorkload, choices: Choices | None, of: Collection[str], p, dy) -> Results:
    """Each result by its solver."""
    solved = {}
    for name in of:
        system, solver = JUDGED[name]
        given = dy, p, workload.n_iters, system, solver, workload.dtype
        choice = (choices or {}).get(f"sinkhorn_implicit_{solver}")
        solved[name] = eager.backward(*given) if choices is None else launch.implicit_backward(*given, choice)
    return solved
