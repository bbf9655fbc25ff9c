"""Solvers of the equations of stationarity, right and wrong, emulated in PyTorch.

Each takes (workload, P, dY) and returns the results of implicit_gate.JUDGED that it is an implementation of.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ci.gate import arithmetic, gate
from ci.gate.arithmetic import AMD, NVIDIA, Arithmetic, bfloat16, keep_bits
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from ci.operators.implicit.solvers import (
    Solve,
    conjugate_gradients,
    elimination,
    full_gradient,
    sum_of_weights,
)
from ci.operators.implicit.truths import JUDGED, results
from helion_sinkhorn.lab.sinkhorn import budget as testing
from helion_sinkhorn.lab.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit

DIRECT, CG, REDUCED, FULL = JUDGED
CORRECTED = DIRECT, CG


def solving(solve: Solve, *names: str) -> gate.Run:
    """An implementation of the results named, of all without a name."""

    def run(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> gate.Results:
        # the unknowns stand on the columns
        turn = (lambda t: t.mT) if p.size(-2) < p.size(-1) else (lambda t: t)
        found = {}
        for name in results(w, p):
            if not names or name in names:
                system, _ = JUDGED[name]
                found[name] = turn(solve(w, system, turn(p).float(), turn(dy).float())).to(w.dtype)
        return found

    return run


def package(solver: str) -> Solve:
    """The CPU path."""
    return lambda w, system, p, dy: implicit.backward(dy, p, w.n_iters, system, solver, torch.float32)


def solved_exactly(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    found = {}
    for name in results(w, p):
        system, _ = JUDGED[name]
        found[name] = Stationarity(p, dy, system).exact.to(w.dtype)
    return found


def sums(p: torch.Tensor, dy: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Row and column sums of P, and those of P dY."""
    return p.sum(-1), p.sum(-2), (p * dy).sum(-1), (p * dy).sum(-2)


def columns(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """P' y."""
    return (p * y.unsqueeze(-1)).sum(-2)


def matrix_of(r: torch.Tensor, c: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """diag(c) - P' diag(1/r) P."""
    return torch.diag_embed(c) - p.mT @ (p / r.unsqueeze(-1))


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
        return gradient(p, dy, bordered(matrix_of(r, c, p), s_c - columns(p, s_r / r)), r)
    n, m = p.shape[-2:]
    top, bottom = torch.cat((torch.diag_embed(r), p), -1), torch.cat((p.mT, torch.diag_embed(c)), -1)
    gauge = torch.cat((torch.ones(n), -torch.ones(m)))
    x = bordered(torch.cat((top, bottom), -2), torch.cat((s_r, s_c), -1), gauge)
    return full_gradient(p, dy, x)


def in_float64(solve: Callable[..., torch.Tensor], *names: str) -> gate.Run:
    """A function of (P, dY) in float64, rounded once: a fault and no rounding error."""
    return solving(lambda w, system, p, dy: solve(p.double(), dy.double()), *names)


def gauge_not_fixed(w: SinkhornWorkload, system: str, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The nearly singular reduced system as it stands."""
    p, dy = p.double(), dy.double()
    r, c, s_r, s_c = sums(p, dy)
    r, c = torch.ones_like(r), torch.ones_like(c)
    return gradient(p, dy, torch.linalg.solve(matrix_of(r, c, p), s_c - columns(p, s_r)), r)


def constant_added(p, dy):
    r, c, s_r, s_c = sums(p, dy)
    matrix = matrix_of(r, c, p) + 1e-4 * torch.eye(p.size(-1), dtype=p.dtype)
    return gradient(p, dy, torch.linalg.solve(matrix, s_c - columns(p, s_r / r)), r)


def row_sums_of_one(p, dy):
    _, c, s_r, s_c = sums(p, dy)
    r = torch.ones_like(s_r)
    return gradient(p, dy, bordered(matrix_of(r, c, p), s_c - columns(p, s_r)), r)


def transposed_system(p, dy):
    r, c, s_r, s_c = sums(p, dy)
    return gradient(p, dy, bordered(matrix_of(c, r, p.mT), s_c - columns(p, s_r / r)), r)


def without_row_part(p, dy):
    r, c, _, s_c = sums(p, dy)
    return gradient(p, dy, bordered(matrix_of(r, c, p), s_c), r)


def without_rows(p, dy):
    r, c, s_r, s_c = sums(p, dy)
    beta = bordered(matrix_of(r, c, p), s_c - columns(p, s_r / r))
    return p * (dy - beta.unsqueeze(-2))


def without_columns(p, dy):
    return gradient(p, dy, torch.zeros_like(p[:, 0]), p.sum(-1))


def exact_instead(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    x = w.make_inputs()[0][: len(p)]
    n_iters, eps, form, first = w.arguments
    _, dx = testing.exact(x, dy, n_iters, eps=eps, form=form, first=first)
    return dict.fromkeys(results(w, p), dx.to(w.dtype))


def pivots_by_subtraction(w, system, p, dy):
    """LAPACK on the corrected system without its last unknown: diagonal less what is eliminated."""
    r, c, s_r, s_c = sums(p, dy)
    matrix, right = matrix_of(r, c, p), s_c - columns(p, s_r / r)
    beta = torch.nn.functional.pad(torch.linalg.solve(matrix[:, :-1, :-1], right[:, :-1]), (0, 1))
    return gradient(p, dy, beta, r)


def eliminated_counted(w: torch.Tensor, k: int, a: Arithmetic) -> torch.Tensor:
    return sum_of_weights(w, k, a) + w[:, k : k + 1, :k].sum(-1, keepdim=True)


def pivot_of_8_bits(w: torch.Tensor, k: int, a: Arithmetic) -> torch.Tensor:
    return keep_bits(sum_of_weights(w, k, a), 8)


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> gate.Run:
    """Right results, then damaged."""
    return lambda w, p, dy: {name: change(t) for name, t in RIGHT(w, p, dy).items()}


RIGHT = functools.lru_cache(maxsize=1)(solving(package("direct"), *CORRECTED))


def truncated_result(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    kept = {torch.bfloat16: 7, torch.float16: 10}[w.dtype]

    def solve(w, system, p, dy):
        return keep_bits(package("direct")(w, system, p, dy).contiguous(), kept)

    return solving(solve, *CORRECTED)(w, p, dy)


def neighbour_leaks(t: torch.Tensor) -> torch.Tensor:
    return t + (2.0**-7 if t.dtype != torch.float32 else 2.0**-10) * t.roll(1, 0)


def is_wide(w: SinkhornWorkload) -> bool:
    return w.dtype == torch.float32


def is_nearly_disconnected(w: SinkhornWorkload) -> bool:
    return w.logits == "identity_like"


ELIMINATED = DIRECT, CG, REDUCED
"""What elimination is an implementation of: it is within what conjugate gradients can do, not the reverse."""
ITERATED = CG, REDUCED, FULL
GOOD: dict[str, gate.Run] = {
    "rounded once from float64": solved_exactly,
    "elimination, the CPU path": solving(package("direct"), *ELIMINATED),
    "elimination, division rounded": solving(elimination(), *ELIMINATED),
    "elimination, sums backwards": solving(elimination(Arithmetic(sums="backwards")), *ELIMINATED),
    "elimination, tree sums": solving(elimination(Arithmetic(sums="tree")), *ELIMINATED),
    "elimination, last unknown first": solving(elimination(backwards=True), *ELIMINATED),
    "elimination, NVIDIA division": solving(elimination(NVIDIA), *ELIMINATED),
    "elimination, AMD division": solving(elimination(AMD), *ELIMINATED),
    "conjugate gradients, the CPU path": solving(package("cg"), *ITERATED),
    "conjugate gradients, division rounded": solving(conjugate_gradients(), *ITERATED),
    "conjugate gradients, sums backwards": solving(
        conjugate_gradients(Arithmetic(sums="backwards")), *ITERATED
    ),
    "conjugate gradients, tree sums": solving(conjugate_gradients(Arithmetic(sums="tree")), *ITERATED),
    "conjugate gradients, NVIDIA division": solving(conjugate_gradients(NVIDIA), *ITERATED),
    "conjugate gradients, AMD division": solving(conjugate_gradients(AMD), *ITERATED),
}
FAULTS = [
    # where sums are one a shift along the gauge changes nothing
    Fault("gauge not fixed", solving(gauge_not_fixed, REDUCED), where=lambda w: w.n_iters <= 10),
    Fault("1e-4 added to the diagonal for the gauge", in_float64(constant_added, *CORRECTED), where=is_wide),
    Fault("row sums taken for one", in_float64(row_sums_of_one, *CORRECTED)),
    Fault("transposed system", in_float64(transposed_system, *CORRECTED), where=lambda w: w.n == w.m),
    Fault("right-hand side without the row part", in_float64(without_row_part, *CORRECTED)),
    Fault("unknowns of the rows left out", in_float64(without_rows, *CORRECTED)),
    Fault("unknowns of the columns left out", in_float64(without_columns, *CORRECTED)),
    Fault("exact gradient passed off as implicit", exact_instead, CORRECTED),
    Fault("half of the steps of conjugate gradients", solving(
        conjugate_gradients(steps=lambda k: k // 2), *ITERATED)),
    Fault("conjugate gradients one step short of the rank", solving(
        conjugate_gradients(steps=lambda k: k - 2), *ITERATED)),
    Fault("a single step of conjugate gradients", solving(conjugate_gradients(steps=lambda k: 1), *ITERATED)),
    Fault("pivots count eliminated nodes", solving(elimination(pivot=eliminated_counted), *ELIMINATED),
          where=lambda w: min(w.n, w.m) > 2),
    Fault("pivots of 8 bits", solving(elimination(pivot=pivot_of_8_bits), *ELIMINATED), where=is_wide),
    Fault("pivots by subtraction", solving(pivots_by_subtraction, DIRECT), where=is_nearly_disconnected),
    Fault("unknowns not relative to the largest entry of their row", solving(
        elimination(relative=False), DIRECT), where=is_nearly_disconnected),
    Fault("elimination in bfloat16", solving(elimination(partial=bfloat16), *ELIMINATED), where=is_wide),
    Fault("bfloat16 accumulator", solving(elimination(Arithmetic(partial=bfloat16)), *ELIMINATED),
          where=is_wide),
    Fault("TF32 products", solving(elimination(Arithmetic(operand=lambda t: keep_bits(t, 10))), *ELIMINATED),
          where=is_wide),
    Fault("reciprocal of 8 bits", solving(elimination(Arithmetic(
        multiplies=True, inverse=lambda t: keep_bits(t, 8))), *ELIMINATED), where=is_wide),
    Fault("P rounded to bfloat16", lambda w, p, dy: solved_exactly(w, p.bfloat16().float(), dy),
          where=is_wide),
    Fault("result truncated", truncated_result, where=lambda w: not is_wide(w)),
    *(Fault(name, after(change)) for name, change in DAMAGES.items()),
    Fault("a neighbour's gradient leaks in", after(neighbour_leaks)),
]  # fmt: skip


def vendor(a: Arithmetic) -> gate.Run:
    """Elimination where the limit is its own, conjugate gradients elsewhere."""
    return lambda w, p, dy: {
        **solving(conjugate_gradients(a), *ITERATED)(w, p, dy), **solving(elimination(a), DIRECT)(w, p, dy),
    }  # fmt: skip


VENDORS = {name: vendor(a) for name, a in arithmetic.VENDORS.items()}
BASELINE = solving(linalg)
