"""Bugs of the implicit gradient's solvers, each planted into a right one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import gate
from ci.gate.arithmetic import bfloat16, keep_bits
from ci.gate.bugs import Bug, anywhere, at, later
from ci.operators.implicit import faults
from ci.operators.implicit.solvers import conjugate_gradients, elimination, sum_of_weights
from ci.operators.implicit.truths import JUDGED
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit

DIRECT, CG, _, _ = JUDGED
SMALL, WIDE, MASKED, UNCONVERGED = (
    "implicit_tail_5x3",
    "implicit_wide_4x8",
    "implicit_masked_8",
    "implicit_seven_8",
)


def right(w: SinkhornWorkload, p: torch.Tensor, dy: torch.Tensor) -> gate.Results:
    """The CPU path: what elimination does is within what conjugate gradients can do."""
    found = {}
    for name in (DIRECT, CG):
        system, (solver, *_) = JUDGED[name]
        found[name] = implicit.backward(dy, p, w.n_iters, system, solver, w.dtype)
    return found


def given(p=lambda p: p, dy=lambda dy: dy) -> gate.Run:
    """Other inputs."""
    return lambda w, a, b: right(w, p(a), dy(b))


def solver(
    system: Callable, rest: Callable = lambda p, dy, beta, r: faults.gradient(p, dy, beta, r)
) -> gate.Run:
    """(matrix, right-hand side) from (P, dY, row sums, column sums, row and column sums of P dY), solved in
    float64."""

    def solve(w, _, p, dy):
        p, dy = p.double(), dy.double()
        r, c, s_r, s_c = faults.sums(p, dy)
        matrix, right_side = system(p, dy, r, c, s_r, s_c)
        return rest(p, dy, faults.bordered(matrix, right_side), r)

    return faults.solving(solve, DIRECT)


def plain(p, dy, r, c, s_r, s_c):
    return faults.matrix_of(r, c, p), s_c - faults.columns(p, s_r / r)


def with_matrix(change: Callable) -> gate.Run:
    """The matrix of the system changed, from (matrix, P, r, c)."""

    def system(p, dy, r, c, *sums):
        matrix, b = plain(p, dy, r, c, *sums)
        return change(matrix, p, r, c), b

    return solver(system)


def with_right_side(change: Callable) -> gate.Run:
    """The right-hand side changed, from (b, P, dY, r)."""

    def system(p, dy, r, c, *sums):
        matrix, b = plain(p, dy, r, c, *sums)
        return matrix, change(b, p, dy, r)

    return solver(system)


def with_rest(change: Callable) -> gate.Run:
    """What is made of the unknowns, from (P, dY, beta, r)."""
    return solver(plain, change)


def without_row(row: int) -> Callable:
    def change(matrix, p, r, c):
        line = p[:, row]
        return matrix + line.unsqueeze(-1) * (line / r[:, row, None]).unsqueeze(-2)

    return change


def stopping_early(w, p, dy):
    return faults.solving(conjugate_gradients(steps=lambda k: max(1, k - 1)), CG)(w, p, dy)


def pivot_without_last(w: torch.Tensor, k: int, a) -> torch.Tensor:
    """The sum of what is left of a row, one short."""
    return sum_of_weights(w, k, a) - (w[:, k : k + 1, -1:] if k < w.size(-1) - 2 else 0.0)


def mean_of_columns(p, dy, beta, r):
    rest = dy - beta.unsqueeze(-2)
    return p * (rest - (p * rest).mean(-1, keepdim=True))


def floored(t: torch.Tensor) -> torch.Tensor:
    near = t.bfloat16()
    return torch.where(near.float() > t, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def rounded_down(w, p, dy):
    wide = right(replace(w, dtype=torch.float32), p.float(), dy.float())
    return {name: floored(t) for name, t in wide.items()}


def for_some(wrong: gate.Run, every: int) -> gate.Run:
    """Wrong at one position of so many."""

    def run(w, p, dy):
        where = (torch.arange(len(p)) % every == every - 1).view(-1, 1, 1)
        bad = wrong(w, p, dy)
        return {name: torch.where(where, bad[name], t) for name, t in right(w, p, dy).items() if name in bad}

    return run


def bug(name: str, on: str, run: gate.Run, of: tuple[str, ...] = (DIRECT,), hidden: str = "") -> Bug:
    return Bug(name, on, run, of, hidden)


BUGS = [
    *anywhere(right, SMALL, DIRECT, 1),
    bug("last row left out of the matrix", WIDE, with_matrix(without_row(-1))),
    bug(
        "first row twice in the matrix",
        SMALL,
        with_matrix(lambda m, p, r, c: 2 * m - without_row(0)(m, p, r, c)),
    ),
    bug("row sums squared", UNCONVERGED, with_matrix(lambda m, p, r, c: faults.matrix_of(r.square(), c, p))),
    bug(
        "row sums of the matrix before",
        UNCONVERGED,
        with_matrix(lambda m, p, r, c: faults.matrix_of(r.roll(1, 0), c, p)),
    ),
    bug(
        "column sums taken for one",
        "implicit_driver_8",
        with_matrix(lambda m, p, r, c: faults.matrix_of(r, torch.ones_like(c), p)),
    ),
    bug(
        "diagonal without eliminated weight",
        SMALL,
        with_matrix(lambda m, p, r, c: torch.diag_embed(c) - m.triu(1) * -1 - m.tril(-1) * -1),
    ),
    bug("upper triangle only", SMALL, with_matrix(lambda m, p, r, c: m.triu())),
    bug("matrix in half precision", SMALL, with_matrix(lambda m, p, r, c: m.half().double())),
    bug(
        "2^-14 on the diagonal",
        SMALL,
        with_matrix(lambda m, p, r, c: m + 2.0**-14 * torch.eye(m.size(-1), dtype=m.dtype)),
    ),
    bug("right-hand side with the other sign", SMALL, with_right_side(lambda b, *_: -b)),
    bug(
        "right-hand side misses the last row",
        WIDE,
        with_right_side(lambda b, p, dy, r: b - (p * (dy - ((p * dy).sum(-1) / r).unsqueeze(-1)))[:, -1]),
    ),
    bug("right-hand side of the matrix before", SMALL, with_right_side(lambda b, *_: b.roll(1, 0))),
    bug("right-hand side in bfloat16", SMALL, with_right_side(lambda b, *_: b.bfloat16().double())),
    bug(
        "unknowns shifted by one column",
        SMALL,
        with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, beta.roll(1, -1), r)),
    ),
    bug(
        "last unknown zero without the others shifted",
        SMALL,
        with_rest(
            lambda p, dy, beta, r: faults.gradient(p, dy, torch.cat([beta[:, :-1], 0 * beta[:, -1:]], -1), r)
        ),
    ),
    bug(
        "unknowns all larger by one",
        SMALL,
        with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, beta + 1, r)),
        hidden="the gauge: rows take a constant back",
    ),
    bug("unknowns added", SMALL, with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, -beta, r))),
    bug("means of rows unweighted", SMALL, with_rest(mean_of_columns)),
    bug(
        "row sums forgotten at the end",
        UNCONVERGED,
        with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, beta, torch.ones_like(r))),
    ),
    bug(
        "gradient of P, not of the logits",
        SMALL,
        with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, beta, r) / p),
    ),
    bug(
        "gradient times the mask of positive entries",
        "implicit_16",
        with_rest(lambda p, dy, beta, r: faults.gradient(p, dy, beta, r) * (p > 1e-3)),
    ),
    bug(
        "pivot short of the last weight", SMALL, faults.solving(elimination(pivot=pivot_without_last), DIRECT)
    ),
    bug(
        "pivots of 14 bits",
        SMALL,
        faults.solving(elimination(pivot=lambda w, k, a: keep_bits(sum_of_weights(w, k, a), 14)), DIRECT),
    ),
    bug(
        "eliminated weights truncated to 16 bits",
        SMALL,
        faults.solving(elimination(partial=lambda t: keep_bits(t, 15)), DIRECT),
    ),
    bug(
        "conjugate gradients one step short",
        "implicit_sharp_4",
        stopping_early,
        (CG,),
        "the last of m steps is to spare: the system has rank m - 1",
    ),
    bug(
        "conjugate gradients of two steps",
        "implicit_64",
        faults.solving(conjugate_gradients(steps=lambda k: min(k, 2)), CG),
        (CG,),
    ),
    bug(
        "conjugate gradients of a third of the steps",
        MASKED,
        faults.solving(conjugate_gradients(steps=lambda k: k // 3), CG),
        (CG,),
    ),
    bug("upstream gradient transposed in tiles", UNCONVERGED, given(dy=lambda dy: dy.mT.contiguous())),
    bug("upstream gradient in bfloat16", SMALL, given(dy=bfloat16)),
    bug("P in half precision", SMALL, given(p=lambda p: p.half().float())),
    bug(
        "P below 1e-6 taken for zero",
        "implicit_identity_like",
        given(p=lambda p: torch.where(p < 1e-3, 0.0, p)),
    ),
    bug("P renormalised by rows first", UNCONVERGED, given(p=lambda p: p / p.sum(-1, keepdim=True))),
    bug(
        "one position of eight reduced",
        UNCONVERGED,
        for_some(
            solver(
                lambda p, dy, r, c, s_r, s_c: (
                    faults.matrix_of(torch.ones_like(r), torch.ones_like(c), p),
                    s_c - faults.columns(p, s_r),
                )
            ),
            7,
        ),
    ),
    bug(
        "last of two matrices clamped to the first",
        "implicit_two",
        lambda w, p, dy: right(w, p[torch.arange(len(p)).clamp(max=max(len(p) - 2, 0))], dy),
    ),
    bug("rounded down at the store", "implicit_bf16", rounded_down),
    bug(
        "one column of the gradient from the matrix before",
        WIDE,
        later(right, DIRECT, at((..., 5), lambda t: t.roll(1, 0)[..., 5])),
    ),
]
