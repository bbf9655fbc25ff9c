"""Correct implementations of Sinkhorn and its exact gradient, and wrong ones."""

from __future__ import annotations

import functools
import math

import torch

from ci.gate import arithmetic, wrong
from ci.gate.arithmetic import AMD, NVIDIA, Arithmetic, bfloat16, keep_bits, truncated
from ci.gate.damage import clamped_to_the_last, neighbour_leaks
from ci.gate.wrong import Run, Wrong, everywhere, is_float32, narrow
from ci.operators.sinkhorn.steps import (
    RESULTS,
    differentiated,
    dividing,
    in_float64,
    in_place,
    named,
    pytorch,
    recurrence,
    right,
    scaling,
    specification,
)
from helion_sinkhorn import reference
from helion_sinkhorn.lab.rounding import Rounding
from helion_sinkhorn.lab.sinkhorn import budget
from helion_sinkhorn.lab.sinkhorn.logits import PEAKED
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload

VANISHING = frozenset({"column_below", "lines_apart", "shared_column"})
"""Logits with columns so far below their rows that float32 has no exponential of them."""


def in_range(run: Run, *out: str) -> Run:
    """Where float32 holds exp(X - row maxima): a column of zeros has no quotient.  out: other such logits."""
    return lambda w, x, dy: {} if w.form == "log" and w.logits in VANISHING | {*out} else run(w, x, dy)


def before_overflow(run: Run) -> Run:
    """Without dX where dA, which `scaling_form` carries over restarts, leaves float32; kernels carry A dA."""
    return lambda w, x, dy: {
        name: t for name, t in run(w, x, dy).items() if name == "P" or w.logits != "shared_column"
    }


def scaled(machine: Arithmetic = arithmetic.PLAIN) -> Run:
    return before_overflow(scaling(machine))


VENDORS = {vendor: scaled(machine) for vendor, machine in arithmetic.VENDORS.items()}
BASELINE = pytorch
# In place nothing remembers A: a half-step rounds each entry, and near a fixed point every iteration rounds
# it the same way.  Where factors are not 1 there, as they are for square matrices, the error grows by up to a
# unit in the last place an iteration: a third for 6 x 3 and eps = 0.05, beyond the budget at 100 iterations.
GOOD: dict[str, Run] = {
    "rounded once from float64": specification(),
    "PyTorch float32": pytorch,
    "u-v, sequential sums": scaled(),
    "u-v, sums backwards": scaled(Arithmetic(sums="backwards")),
    "u-v, tree sums": scaled(Arithmetic(sums="tree")),
    "u-v, fused": scaled(Arithmetic(fused=True)),
    "u-v, NVIDIA functions": scaled(NVIDIA),
    "u-v, AMD functions": scaled(AMD),
    "the CPU path": right,
    "in place, division rounded": in_range(dividing()),
    "in place, tree sums": in_range(dividing(Arithmetic(sums="tree"))),
    "in place, NVIDIA division": in_range(dividing(NVIDIA), "randn_30"),
    "in place, AMD division": in_range(dividing(AMD)),
}

ONE, FIVE, TWO = "mhc_one_iteration", "mhc_five_iterations", "two_matrices"


def shows_eps(w: SinkhornWorkload) -> bool:
    """A relative change of 1e-6 is a thousandth of the last place of a narrow result."""
    return w.form == "deepseek" and is_float32(w)


def loses_by_recurrence(w: SinkhornWorkload) -> bool:
    """Small matrices near a permutation, in float32: elsewhere the recurrence is as good, or its loss is
    hidden."""
    small = max(w.n, w.m) <= 4 and w.n_iters <= 20
    return is_float32(w) and small and (w.n == 2 or (w.form == "log" and w.logits in PEAKED))


def loses_by_lean(w: SinkhornWorkload) -> bool:
    """Two steps or more with a large eps."""
    return w.form == "deepseek" and w.n_iters > 2 and w.eps >= 1e-2


def shows_an_iteration(w: SinkhornWorkload) -> bool:
    """With 0 on the diagonal and -16 off it an iteration changes one part in 10^7."""
    return w.logits != "identity_like_16"


def narrow_throughout(w, x, dy):
    leaf = x.detach().requires_grad_()
    p = reference.sinkhorn(leaf, **w.options)
    return named(w, p, *torch.autograd.grad(p, leaf, dy))


def padded(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """A row and a column of exp(0) beside the matrix take part in the sums."""
    return reference.sinkhorn(torch.nn.functional.pad(t, (0, 1, 0, 1)), **w.options)[..., :-1, :-1]


def iterated(w: SinkhornWorkload, p: torch.Tensor) -> torch.Tensor:
    """The iterations after the softmax."""
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum((-2, -1)[k % 2], keepdim=True) + w.eps)
    return p


def maximum_of_four(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """The maximum of the first four columns subtracted."""
    e = (t - t[..., :4].amax(-1, keepdim=True)).exp()
    return iterated(w, e / e.sum(-1, keepdim=True) + w.eps)


def second_half(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """The history cut: what the first half of the iterations did to the logits is taken for constant."""
    half = w.n_iters // 2
    middle = reference.sinkhorn(t, half, form="log", first=w.first).log()
    start = t + (middle - t).nan_to_num().detach()
    return reference.sinkhorn(start, w.n_iters - half, form="log", first=w.first)


class Lean(budget.Iterations):
    """The adjoint takes each u but the first from v alone, without its term in eps^2."""

    def run(self, steps: int, segment: int) -> tuple[torch.Tensor, torch.Tensor]:
        last, eps = super().run(steps, segment), self.eps * self.rho
        for (_, earlier, *_), t in zip(self.history[:], range(1, steps), strict=False):
            a, before, _, after = self.history[t]
            lead = (a * (before + eps * earlier)).sum(-1, keepdim=True)
            self.history[t] = a, before, 1.0 / (self.rho * lead), after
        return last


class RestartingLate(budget.Iterations):
    """u and v absorbed after three times as many iterations."""

    def run(self, steps: int, segment: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().run(steps, 3 * segment)


given = functools.partial(wrong.given, right, ("x", "dy"))
for_some = functools.partial(wrong.for_some, right)


without_half_step = in_float64(lambda w, t: in_place(t, w, arithmetic.PLAIN, missing=1))
WRONG = [
    Wrong("one iteration missing", specification(n_iters=lambda w: w.n_iters - 1), RESULTS,
          lambda w: w.n_iters > 1 and shows_an_iteration(w)),
    Wrong("last half-step missing", without_half_step, RESULTS, everywhere),
    Wrong("columns before rows", specification(first=lambda w: "cols" if w.first == "rows" else "rows"),
          RESULTS, everywhere),
    Wrong("eps not in the denominators", in_float64(lambda w, t: in_place(t, w, arithmetic.PLAIN, eps=0.0)),
          RESULTS, shows_eps),
    Wrong("eps in the log form", dividing(eps=1e-6), RESULTS, "identity_like_4"),
    Wrong("padding counted", differentiated(padded), RESULTS, "tail_5x3"),
    Wrong("mask softened", given(x=lambda x: x.masked_fill(x == -math.inf, -10.0)), RESULTS,
          lambda w: w.logits == "masked"),
    Wrong("masked entries at -30", given(x=lambda x: x.clamp_min(-30.0)), RESULTS, "masked_8",
          hidden="e^-30 is 1e-13: the budget of the log form has 2^-30 for what underflows"),
    Wrong("maximum of the first four columns", differentiated(maximum_of_four), RESULTS, "beyond_exp"),
    Wrong("maximum of the first four columns, logits of 30 randn", differentiated(maximum_of_four), RESULTS,
          "peaked_sharpest_16",
          hidden="any shift gives the same softmax until an exponential overflows"),
    Wrong("bfloat16 accumulator", dividing(Arithmetic(partial=bfloat16)), RESULTS, is_float32),
    Wrong("TF32 products", scaling(Arithmetic(operand=lambda t: keep_bits(t, 10))), RESULTS,
          lambda w: is_float32(w) and w.n_iters > 1),
    Wrong("exponential of 12 bits", dividing(Arithmetic(exp_ulps=2.0**11)), RESULTS, is_float32),
    Wrong("result truncated", wrong.narrowed(pytorch, truncated), RESULTS, narrow),
    Wrong("narrow arithmetic throughout", narrow_throughout, RESULTS, narrow),
    Wrong("gradient of the second half only", in_float64(second_half), ("dX",), lambda w: w.n_iters > 1),
    Wrong("restarts three times too far apart", scaling(kind=RestartingLate), RESULTS,
          lambda w: w.logits == "shared_column"),
    Wrong("u again without its term in eps^2", scaling(Rounding(0, unit=0.0), Lean, torch.float64), ("dX",),
          loses_by_lean),
    Wrong("cotangents of u and v by recurrence", differentiated(recurrence), ("dX",), loses_by_recurrence),
    Wrong("a neighbour's gradient leaks in", wrong.damaged(pytorch, neighbour_leaks), ("dX",), everywhere),
    Wrong("one iteration fewer at odd positions",
          for_some(specification(n_iters=4), lambda k: k % 2 == 1), RESULTS, FIVE),
    Wrong("the last half-step missing at one position of 64",
          for_some(without_half_step, lambda k: k % 64 == 63), RESULTS, ONE),
    Wrong("last matrix clamped to the one before", given(x=clamped_to_the_last), RESULTS, TWO),
    Wrong("matrices taken to be adjacent", wrong.as_if_contiguous(right, wrong.elements_apart), RESULTS, TWO),
    *wrong.damages(pytorch, RESULTS),
    *wrong.of_any(right, "tail_5x3", "P", 1),
]  # fmt: skip
