"""The implicit gradient as the gate judges it: by its own equations at a given P, not by the exact gradient.

Results are "implicit dX (direct)" and "implicit dX (cg)", the corrected system within what either solver can
do, and "implicit dX (reduced)" and "implicit dX (full)", offered for comparison, judged where they are meant.
"""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from helion_sinkhorn import reference
from helion_sinkhorn.lab import rounding
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps, marginal_error, solver_for
from helion_sinkhorn.runtime.launch import device_of

JUDGED = {
    "implicit dX (direct)": ("corrected", ("direct",)),
    "implicit dX (cg)": ("corrected", ("cg",)),
    # eliminating the rows of the full system leaves the reduced one
    "implicit dX (reduced)": ("reduced", ("cg", "direct")),
    "implicit dX (full)": ("full", ("cg",)),
}
"""The system behind each result and its solvers, the first of which sets the limit."""
NEAR = 1e-2
"""Largest median of the marginal error at which "reduced" and "full" are judged: they are right at a fixed
point, and away from it their matrix may be indefinite."""


def inputs(workload: SinkhornWorkload, steps: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The judged P, rounded once from float64, and upstream gradients."""
    k = gate.judged(workload, steps)
    x, dy = (t[:k] for t in workload.make_inputs())
    n_iters, eps, form, first = workload.arguments
    p = reference.sinkhorn(x.double(), n_iters, eps=eps, form=form, first=first)
    return p.to(workload.dtype), dy


def results(workload: SinkhornWorkload, p: torch.Tensor) -> list[str]:
    """The results of JUDGED that a call has."""
    names = ["implicit dX (direct)", "implicit dX (cg)"]
    n, m = p.shape[-2:]
    if n == m and marginal_error(p).median() <= NEAR:
        # with fewer steps than unknowns conjugate gradients need not have ended
        names += [
            f"implicit dX ({system})"
            for system, unknowns in (("reduced", m), ("full", n + m))
            if cg_steps(system, n, m, workload.n_iters) == unknowns
        ]
    return names


def truths(workload: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> dict[str, gate.Truth]:
    """The equations solved in float64 from the same P."""
    # matrices that share their P share its rounding errors
    distinct = len(torch.unique(p, dim=0))
    found = {}
    for name in results(workload, p):
        system, (solver, *_) = JUDGED[name]
        equations = Stationarity(p, dy, system)
        exact, budget = equations.exact, equations.error_budget(solver, workload.dtype)
        spread = gate.spread(exact, budget, workload.dtype)
        few = slice(gate.SYSTEMATIC_MATRICES)
        sample = Stationarity(p[few], dy[few], system)
        drawn = (sample.perturbed(solver, gate.Systematic(seed)) for seed in range(rounding.SAMPLES))
        systematic = max(abs(gate.bias(t, exact[few], spread[few])) for t in drawn)
        # the unknowns of a matrix carry an error to all its entries
        scale, together = gate.largest(exact), (-2, -1)
        found[name] = gate.Truth(exact, budget, spread, scale, systematic, distinct, together, workload.dtype)
    return found


def candidates(workload: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> list[gate.Candidate]:
    """Both solvers for each system, with each of their configs; on a CPU the CPU path."""
    n, m = p.shape[-2:]
    auto = "corrected", solver_for("auto", n, m)
    pairs = [(name, JUDGED[name][0], solver) for name in results(workload, p) for solver in JUDGED[name][1]]
    if not p.is_cuda:
        return [
            gate.Candidate(
                f"implicit.{solver}", name, {"system": system}, "", (system, solver) == auto,
                functools.partial(on_cpu, workload, system, solver),
            )
            for name, system, solver in pairs
        ]  # fmt: skip
    return [c for pair in pairs for c in kernels(workload, p, *pair, pair[1:] == auto)]


def on_cpu(
    workload: SinkhornWorkload, system: str, solver: str, p: torch.Tensor, dy: torch.Tensor
) -> torch.Tensor:
    return implicit.backward(dy, p, workload.n_iters, system, solver, workload.dtype)


def kernels(
    workload: SinkhornWorkload, p: torch.Tensor, name: str, system: str, solver: str, auto: bool
) -> list[gate.Candidate]:
    """One solver of one system."""
    from helion_sinkhorn.ops.sinkhorn.implicit import launch

    def run(p, dy, choice):
        return launch.implicit_backward(dy, p, workload.n_iters, system, solver, workload.dtype, choice)

    call = launch.implicit_call(*p.shape[-2:], p.dtype, workload.n_iters)
    kernel = f"sinkhorn_implicit_{solver}"
    return [
        gate.Candidate(
            kernel, name, {"system": system, **dict(choice.config), **dict(choice.variant)}, choice.source,
            auto and served, functools.partial(run, choice=choice),
        )
        for choice, served in choices.choices(kernel, call, p.size(0), device_of(p))
    ]  # fmt: skip
