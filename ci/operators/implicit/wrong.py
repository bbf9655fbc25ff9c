"""Correct solvers of the equations of stationarity and wrong ones.

Each computes the results of JUDGED that it implements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ci.gate import arithmetic, wrong
from ci.gate.arithmetic import AMD, NVIDIA, Arithmetic, keep_bits, truncated
from ci.gate.damage import clamped_to_the_last, neighbour_leaks
from ci.gate.wrong import Results, Run, Wrong, by_eager, everywhere, is_float32, narrow
from ci.operators.implicit.solvers import (
    Solve,
    conjugate_gradients,
    elimination,
    full_gradient,
    sum_of_weights,
)
from helion_sinkhorn.lab.sinkhorn import budget
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.implicit.evidence import CORRECTED, JUDGED, results, run
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn.implicit import eager

DIRECT, CG, REDUCED, REDUCED_DIRECT, FULL = JUDGED
ELIMINATED = DIRECT, CG, REDUCED, REDUCED_DIRECT
"""What elimination is an implementation of: it is within what conjugate gradients can do, not the reverse."""
ITERATED = CG, REDUCED, REDUCED_DIRECT, FULL


def solving(solve: Solve, *names: str) -> Run:
    """An implementation of the results named, of all without a name."""

    def solved(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> Results:
        # the unknowns stand on the columns
        turn = (lambda t: t.mT) if p.size(-2) < p.size(-1) else (lambda t: t)
        systems = {name: JUDGED[name][0] for name in results(w) if not names or name in names}
        unknowns = {
            system: turn(solve(w, system, turn(p).float(), turn(dy).float())).to(w.dtype)
            for system in dict.fromkeys(systems.values())
        }
        return {name: unknowns[system] for name, system in systems.items()}

    return solved


def package(solver: str) -> Solve:
    """The CPU path."""
    return lambda w, system, p, dy: eager.backward(dy, p, w.n_iters, system, solver, torch.float32)


right = by_eager(run, CORRECTED)
"""The CPU path, for the system that `sinkhorn` solves."""


def solved_exactly(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> Results:
    # eigenvalues of a whole batch fail with one NaN
    finite = p.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)
    given = torch.where(finite, p, 1.0), dy
    systems = {name: JUDGED[name][0] for name in results(w)}
    unknowns = {system: Stationarity(*given, system).exact for system in dict.fromkeys(systems.values())}
    return {
        name: torch.where(finite, unknowns[system], torch.nan).to(w.dtype) for name, system in systems.items()
    }


def sums(p: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Row and column sums of P, and of P dY."""
    return p.sum(-1), p.sum(-2), (p * dy).sum(-1), (p * dy).sum(-2)


def matrix_of(r: torch.Tensor, c: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """diag(c) - P' diag(1/r) P."""
    return torch.diag_embed(c) - p.mT @ (p / r.unsqueeze(-1))


def right_side(p: torch.Tensor, s_c: torch.Tensor, means: torch.Tensor) -> torch.Tensor:
    """The column sums of P dY less P' times the means of rows."""
    return s_c - (p * means.unsqueeze(-1)).sum(-2)


def bordered(matrix: torch.Tensor, right: torch.Tensor, gauge: torch.Tensor | None = None) -> torch.Tensor:
    """The solution orthogonal to the gauge, ones if left out, of the equations projected likewise."""
    gauge = right.new_ones(right.size(-1)) if gauge is None else gauge
    along = torch.outer(gauge, gauge) / len(gauge)
    free = torch.eye(len(gauge), dtype=right.dtype) - along
    return torch.linalg.solve(free @ matrix @ free + along, right @ free)


def gradient(p: torch.Tensor, dy: torch.Tensor, beta: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    rest = dy - beta.unsqueeze(-2)
    return p * (rest - ((p * rest).sum(-1) / r).unsqueeze(-1))


def linalg(w: SinkhornWorkload, system: str, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Each matrix by torch.linalg, its gauge fixed by a border."""
    r, c, s_r, s_c = sums(p, dy)
    if system != "corrected":
        r, c = torch.ones_like(r), torch.ones_like(c)
    if system != "full":
        return gradient(p, dy, bordered(matrix_of(r, c, p), right_side(p, s_c, s_r / r)), r)
    n, m = p.shape[-2:]
    top, bottom = torch.cat((torch.diag_embed(r), p), -1), torch.cat((p.mT, torch.diag_embed(c)), -1)
    gauge = torch.cat((torch.ones(n), -torch.ones(m)))
    return full_gradient(p, dy, bordered(torch.cat((top, bottom), -2), torch.cat((s_r, s_c), -1), gauge))


def by_both(a: Arithmetic) -> Run:
    """Elimination where the limit is its own, conjugate gradients elsewhere."""
    iterated, eliminated = solving(conjugate_gradients(a), *ITERATED), solving(elimination(a), DIRECT)
    return lambda w, *inputs: iterated(w, *inputs) | eliminated(w, *inputs)


VENDORS = {name: by_both(a) for name, a in arithmetic.VENDORS.items()}
BASELINE = solving(linalg)
VARIED = {
    "division rounded": Arithmetic(),
    "sums backwards": Arithmetic(sums="backwards"),
    "tree sums": Arithmetic(sums="tree"),
    "NVIDIA division": NVIDIA,
    "AMD division": AMD,
}
GOOD: dict[str, Run] = {
    "rounded once from float64": solved_exactly,
    "elimination, the CPU path": solving(package("direct"), *ELIMINATED),
    **{f"elimination, {name}": solving(elimination(a), *ELIMINATED) for name, a in VARIED.items()},
    "elimination, last unknown first": solving(elimination(backwards=True), *ELIMINATED),
    "conjugate gradients, the CPU path": solving(package("cg"), *ITERATED),
    **{
        f"conjugate gradients, {name}": solving(conjugate_gradients(a), *ITERATED)
        for name, a in VARIED.items()
    },
}

SMALL, DISCONNECTED = "implicit_tail_5x3", "implicit_identity_like"
given = functools.partial(wrong.given, right, ("p", "dy"))


def changed(
    *, made=sums, matrix=matrix_of, right=right_side, solve=bordered, rest=gradient, of=CORRECTED
) -> Run:
    """The reduced equations in float64, rounded once: an error and no rounding error.

    Args:
        made: (P, dY) -> row and column sums of P, then row and column sums of P dY.
        matrix: (row sums, column sums, P) -> the matrix of the system.
        right: (P, column sums of P dY, means of rows) -> its right-hand side.
        solve: (matrix, right-hand side) -> the unknowns.
        rest: (P, dY, unknowns, row sums) -> the gradient.
        of: results.
    """

    def solved(w, system, p, dy):
        p, dy = p.double(), dy.double()
        r, c, s_r, s_c = made(p, dy)
        return rest(p, dy, solve(matrix(r, c, p), right(p, s_c, s_r / r)), r)

    return solving(solved, *of)


def sums_of_one(p: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    r, c, *of_products = sums(p, dy)
    return torch.ones_like(r), torch.ones_like(c), *of_products


def row_sums_of_one(p: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    r, *others = sums(p, dy)
    return torch.ones_like(r), *others


def with_constant(r, c, p):
    return matrix_of(r, c, p) + 1e-4 * torch.eye(p.size(-1), dtype=p.dtype)


def exact_instead(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> Results:
    x = w.make_inputs()[0]
    n_iters, eps, form, first = w.arguments
    _, dx = budget.exact(x[torch.arange(len(p)) % len(x)], dy, n_iters, eps=eps, form=form, first=first)
    return dict.fromkeys(CORRECTED, dx.to(w.dtype))


def pivots_by_subtraction(w, system, p, dy):
    """LAPACK on the corrected system without its last unknown: diagonal less what is eliminated."""
    r, c, s_r, s_c = sums(p, dy)
    matrix, right = matrix_of(r, c, p), right_side(p, s_c, s_r / r)
    beta = torch.nn.functional.pad(torch.linalg.solve(matrix[:, :-1, :-1], right[:, :-1]), (0, 1))
    return gradient(p, dy, beta, r)


def eliminated_counted(w: torch.Tensor, k: int, a: Arithmetic) -> torch.Tensor:
    return sum_of_weights(w, k, a) + w[:, k : k + 1, :k].sum(-1, keepdim=True)


def pivot_of_8_bits(w: torch.Tensor, k: int, a: Arithmetic) -> torch.Tensor:
    return keep_bits(sum_of_weights(w, k, a), 8)


def ends_elsewhere(w: SinkhornWorkload) -> bool:
    """Row sums are not one: the log form ends with them, and has converged for logits of no structure."""
    return w.form == "deepseek" or w.logits not in ("randn_1", "uniform_4")


def steps(count: Callable[[int], int]) -> Run:
    """Another number of steps of conjugate gradients."""
    return solving(conjugate_gradients(steps=count), *ITERATED)


RIGHT = functools.lru_cache(maxsize=1)(right)
WRONG = [
    # where sums are one a shift along the gauge changes nothing
    Wrong("gauge not fixed", changed(made=sums_of_one, solve=torch.linalg.solve, of=(REDUCED,)), (REDUCED,),
          lambda w: w.n_iters <= 10),
    Wrong("1e-4 added to the diagonal for the gauge", changed(matrix=with_constant), CORRECTED, is_float32),
    Wrong("row sums taken for one", changed(made=row_sums_of_one), CORRECTED, ends_elsewhere),
    Wrong("right-hand side without the row part", changed(right=lambda p, s_c, means: s_c), CORRECTED,
          everywhere),
    Wrong("unknowns all larger by one",
          changed(rest=lambda p, dy, beta, r: gradient(p, dy, beta + 1, r)), (DIRECT,), SMALL,
          hidden="the gauge: rows take a constant back"),
    Wrong("exact gradient passed off as implicit", exact_instead, CORRECTED, everywhere),
    Wrong("half of the steps of conjugate gradients", steps(lambda k: k // 2), ITERATED, everywhere),
    Wrong("conjugate gradients one step short", steps(lambda k: max(1, k - 1)), (CG,), "implicit_sharp_4",
          hidden="the last of m steps is to spare: the system has rank m - 1"),
    Wrong("pivots count eliminated nodes", solving(elimination(pivot=eliminated_counted), *ELIMINATED),
          ELIMINATED,
          lambda w: min(w.n, w.m) > 2),
    Wrong("pivots of 8 bits", solving(elimination(pivot=pivot_of_8_bits), *ELIMINATED), ELIMINATED,
          is_float32),
    Wrong("pivots by subtraction", solving(pivots_by_subtraction, DIRECT), (DIRECT,), DISCONNECTED),
    Wrong("P rounded to bfloat16", lambda w, p, dy: solved_exactly(w, p.bfloat16().float(), dy),
          tuple(JUDGED), is_float32),
    Wrong("result truncated", wrong.narrowed(right, lambda w, t: truncated(w, t.contiguous())), CORRECTED,
          narrow),
    Wrong("a neighbour's gradient leaks in", wrong.damaged(RIGHT, neighbour_leaks), CORRECTED, everywhere),
    Wrong("last of two matrices clamped to the first", given(p=clamped_to_the_last, dy=clamped_to_the_last),
          (DIRECT,), "implicit_two"),
    *wrong.damages(RIGHT, CORRECTED),
    *wrong.of_any(right, SMALL, DIRECT, 1),
]  # fmt: skip
