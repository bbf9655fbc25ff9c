"""Sinkhorn and its exact gradient as the gate must pass them, and as it must not, emulated in PyTorch.

Each takes (workload, x, dy) and returns (P, dX) of the workload's dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate import arithmetic, gate
from ci.gate.arithmetic import AMD, NVIDIA, PLAIN, Arithmetic, bfloat16, keep_bits
from ci.gate.damage import DAMAGES
from ci.gate.gate import Fault
from helion_sinkhorn import reference
from helion_sinkhorn.ops.sinkhorn import budget as testing
from helion_sinkhorn.ops.sinkhorn import eager
from helion_sinkhorn.ops.sinkhorn.implicit.budget import Stationarity
from helion_sinkhorn.ops.sinkhorn.logits import PEAKED
from helion_sinkhorn.ops.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.testing.rounding import Rounding

Pair = tuple[torch.Tensor, torch.Tensor]
Run = Callable[[SinkhornWorkload, torch.Tensor, torch.Tensor], Pair]


def in_place(x: torch.Tensor, workload: SinkhornWorkload, arithmetic: Arithmetic, **change) -> torch.Tensor:
    """The matrix itself divided by its sums: no scaling vectors.

    change: faults.  start_eps, eps: of the softmax and of the denominators; after: of what is added to the
    quotient; iterate: applied to the matrix after each step; steps: half-steps left out at the end.
    """
    if workload.first == "cols":
        return in_place(x.mT, replace(workload, first="rows"), arithmetic, **change).mT
    deepseek = workload.form == "deepseek"
    own = workload.eps if deepseek else 0.0
    eps, start_eps = change.get("eps", own), change.get("start_eps", own)
    after = change.get("after", 0.0)
    iterate = change.get("iterate", lambda p: p)

    def step(p, axis):
        return iterate(arithmetic.divide(p, arithmetic.sum(p, axis) + eps) + after)

    p = arithmetic((x - x.detach().amax(-1, keepdim=True)).exp(), arithmetic.EXP)
    if deepseek:
        p = arithmetic.divide(p, arithmetic.sum(p, -1)) + start_eps
    axes = [-1, -2] * workload.n_iters
    for axis in axes[1 if deepseek else 0 : len(axes) - change.get("steps", 0)]:
        p = step(p, axis)
    return p


def differentiated(
    function: Callable[[torch.Tensor], torch.Tensor], workload: SinkhornWorkload, x, dy
) -> Pair:
    """(P, dX) of a function of the logits in float32, each rounded once to the workload's dtype."""
    compute = torch.promote_types(workload.dtype, torch.float32)
    leaf = x.to(compute, copy=True).requires_grad_()
    p = function(leaf)
    (dx,) = torch.autograd.grad(p, leaf, dy.to(compute))
    return p.detach().to(workload.dtype), dx.to(workload.dtype)


def dividing(arithmetic: Arithmetic = PLAIN, **change) -> Run:
    return lambda w, x, dy: differentiated(lambda t: in_place(t, w, arithmetic, **change), w, x, dy)


VANISHING = frozenset({"column_below", "lines_apart", "shared_column"})
"""Logits with columns so far below their rows that float32 has no exponential of them."""


def in_range(run: Run, *out: str) -> Run:
    """Where float32 holds exp(X - row maxima): a column of zeros has no quotient.  out: other such logits."""
    return lambda w, x, dy: () if w.form == "log" and w.logits in VANISHING | {*out} else run(w, x, dy)


def exactly(**change) -> Run:
    """`dividing` in float64, rounded once: a fault and no rounding error."""
    return in_float64(lambda w, t: in_place(t, w, PLAIN, **change))


def scaling(arithmetic: Arithmetic = PLAIN) -> Run:
    """The scaling form and its adjoint by projections, as the kernels have them."""

    def run(w, x, dy):
        compute = torch.promote_types(w.dtype, torch.float32)
        results = testing.scaling_form(x.to(compute), dy.to(compute), *w.arguments, arithmetic)
        return tuple(t.to(w.dtype) for t in results)

    return run


def recurrence() -> Run:
    """The scaling form and autograd: cotangents of u and v handed from iteration to iteration, none looked at
    again."""
    return lambda w, x, dy: differentiated(
        lambda t: testing.scaling_form(t, None, *w.arguments, PLAIN)[0], w, x, dy
    )


exact = functools.lru_cache(maxsize=4)(testing.exact)
"""Many faults begin with it."""


def specification(**change) -> Run:
    """The equations in float64 with other arguments, rounded once: a fault and no rounding error."""

    def run(w, x, dy):
        p, dx = exact(x, dy, **{**w.options, **change})
        return p.to(w.dtype), dx.to(w.dtype)

    return run


@functools.lru_cache(maxsize=2)
def pytorch(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> Pair:
    """The specification as PyTorch evaluates it in float32, and autograd: what kernels are compared with."""
    return differentiated(lambda t: reference.sinkhorn(t, **w.options), w, x, dy)


def own_adjoint(w, x, dy):
    return eager.forward(x, *w.arguments, w.dtype), eager.backward(dy, x, *w.arguments)


# In place nothing remembers A: a half-step rounds each entry, and near a fixed point every iteration rounds
# it the same way.  Where factors are not 1 there, as they are for square matrices, the error grows by up to a
# unit in the last place an iteration: a third for 6 x 3 and eps = 0.05, beyond the budget at 100 iterations.
_GOOD: dict[str, Run] = {
    "rounded once from float64": specification(),
    "PyTorch float32": pytorch,
    "u-v, sequential sums": scaling(),
    "u-v, sums backwards": scaling(Arithmetic(sums="backwards")),
    "u-v, tree sums": scaling(Arithmetic(sums="tree")),
    "u-v, fused": scaling(Arithmetic(fused=True)),
    "u-v, NVIDIA functions": scaling(NVIDIA),
    "u-v, AMD functions": scaling(AMD),
    "the CPU path": own_adjoint,
    "in place, division rounded": in_range(dividing()),
    "in place, tree sums": in_range(dividing(Arithmetic(sums="tree"))),
    "in place, NVIDIA division": in_range(dividing(NVIDIA), "randn_30"),
    "in place, AMD division": in_range(dividing(AMD)),
}


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    """Right results, then damaged."""
    return lambda w, x, dy: tuple(change(t) for t in pytorch(w, x, dy))


def truncated_result(w, x, dy):
    results = pytorch(replace(w, dtype=torch.float32), x, dy)
    kept = {torch.bfloat16: 7, torch.float16: 10}[w.dtype]
    return tuple(keep_bits(t, kept).to(w.dtype) for t in results)


def narrow_throughout(w, x, dy):
    leaf = x.detach().requires_grad_()
    p = reference.sinkhorn(leaf, **w.options)
    return p.detach(), torch.autograd.grad(p, leaf, dy)[0]


def padding_counted(w, x, dy):
    """A row and a column of exp(0) beside the matrix take part in the sums."""

    def padded(t):
        wide = torch.nn.functional.pad(t, (0, 1, 0, 1))
        return reference.sinkhorn(wide, **w.options)[..., :-1, :-1]

    return differentiated(padded, w, x, dy)


def mask_softened(w, x, dy):
    return pytorch(w, x.masked_fill(x == -math.inf, -10.0), dy)


def other_gradient(gradient: Run) -> Run:
    """The right P with another function's dX."""
    return lambda w, x, dy: (specification()(w, x, dy)[0], gradient(w, x, dy)[1])


def in_float64(function: Callable[[SinkhornWorkload, torch.Tensor], torch.Tensor]) -> Run:
    """(P, dX) of a function of the workload and the logits in float64, rounded once: no rounding error."""

    def run(w, x, dy):
        wide = replace(w, dtype=torch.float64)
        p, dx = differentiated(lambda t: function(wide, t), wide, x, dy)
        return p.to(w.dtype), dx.to(w.dtype)

    return run


def without_first_sums(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """The first normalisation differentiated as if its sums were constants."""
    lead = -1 if w.first == "rows" else -2
    start = t - t.logsumexp(lead, keepdim=True).detach()
    if w.form == "log":
        start = start - start.logsumexp(-3 - lead, keepdim=True)
        return reference.sinkhorn(start, **replace(w, n_iters=w.n_iters - 1).options)
    p = start.exp() + w.eps
    for k in range(2 * w.n_iters - 1):
        p = p / (p.sum((-3 - lead, lead)[k % 2], keepdim=True) + w.eps)
    return p


def second_half(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """The history cut: what the first half of the iterations did to the logits is taken for constant."""
    half = w.n_iters // 2
    middle = reference.sinkhorn(t, half, form="log", first=w.first).log()
    start = t + (middle - t).nan_to_num().detach()
    return reference.sinkhorn(start, w.n_iters - half, form="log", first=w.first)


def stopped_scaling(w, x, dy):
    """dX = dP P: the scaling vectors taken for constants."""
    p, _ = exact(x, dy, **w.options)
    return p.to(w.dtype), (p * dy.double()).to(w.dtype)


def implicit(w, x, dy):
    """The gradient of the fixed point, whether or not it was reached: stationarity at the P that came out."""
    p, _ = exact(x, dy, **w.options)
    return p.to(w.dtype), Stationarity(p, dy, "corrected").exact.to(w.dtype)


class Lean(testing.Iterations):
    """The adjoint takes each u but the first from v alone, without its term in eps^2."""

    def run(self, steps: int, segment: int) -> tuple[torch.Tensor, torch.Tensor]:
        last, eps = super().run(steps, segment), self.eps * self.rho
        for (_, earlier, *_), t in zip(self.history[:], range(1, steps), strict=False):
            a, before, _, after = self.history[t]
            lead = (a * (before + eps * earlier)).sum(-1, keepdim=True)
            self.history[t] = a, before, 1.0 / (self.rho * lead), after
        return last


class RestartingLate(testing.Iterations):
    """u and v absorbed after three times as many iterations."""

    def run(self, steps: int, segment: int) -> tuple[torch.Tensor, torch.Tensor]:
        return super().run(steps, 3 * segment)


def restarting_late(w, x, dy):
    results = testing.scaling_form(x.float(), dy.float(), *w.arguments, PLAIN, RestartingLate)
    return tuple(t.to(w.dtype) for t in results)


def lean(w, x, dy):
    exactly = Rounding(0, unit=0.0)
    p, dx = testing.scaling_form(x.double(), dy.double(), *w.arguments, exactly, Lean)
    return p.to(w.dtype), dx.to(w.dtype)


def neighbour_leaks(w, x, dy):
    p, dx = pytorch(w, x, dy)
    return p, dx + (2.0**-7 if w.dtype != torch.float32 else 2.0**-10) * dx.roll(1, 0)


def is_deepseek(w: SinkhornWorkload) -> bool:
    return w.form == "deepseek"


def shows_eps(w: SinkhornWorkload) -> bool:
    """A relative change of 1e-6 is a thousandth of the last place of a narrow result."""
    return is_deepseek(w) and is_wide(w)


def is_narrow(w: SinkhornWorkload) -> bool:
    return w.dtype != torch.float32


def is_wide(w: SinkhornWorkload) -> bool:
    return w.dtype == torch.float32


def loses_by_recurrence(w: SinkhornWorkload) -> bool:
    """Small matrices near a permutation, in float32: elsewhere the recurrence is as good, or its loss is
    hidden."""
    small = max(w.n, w.m) <= 4 and w.n_iters <= 20
    return is_wide(w) and small and (w.n == 2 or (w.form == "log" and w.logits in PEAKED))


def loses_by_lean(w: SinkhornWorkload) -> bool:
    """Two steps or more with a large eps."""
    return is_deepseek(w) and w.n_iters > 2 and w.eps >= 1e-2


def shows_an_iteration(w: SinkhornWorkload) -> bool:
    """With 0 on the diagonal and -16 off it an iteration changes one part in 10^7."""
    return w.logits != "identity_like_16"


def needs_float32(w: SinkhornWorkload) -> bool:
    """Logits of float32 that bfloat16 does not hold, as it does 0 and -8."""
    return is_wide(w) and not w.logits.startswith("identity_like")


def more_iterations(k: int) -> Run:
    return lambda w, x, dy: specification(n_iters=w.n_iters + k)(w, x, dy)


_FAULTS = [
    Fault("one iteration missing", more_iterations(-1),
          where=lambda w: w.n_iters > 1 and shows_an_iteration(w)),
    Fault("last half-step missing", exactly(steps=1)),
    Fault("one iteration too many", more_iterations(1), where=shows_an_iteration),
    Fault("columns before rows", lambda w, x, dy: specification(
        first="cols" if w.first == "rows" else "rows")(w, x, dy)),
    Fault("transposed result", lambda w, x, dy: tuple(t.mT for t in specification()(w, x, dy)),
          where=lambda w: w.n == w.m),
    Fault("the other form", lambda w, x, dy: specification(
        form="log" if is_deepseek(w) else "deepseek")(w, x, dy), where=is_wide),
    Fault("eps left out", specification(eps=0.0), where=shows_eps),
    Fault("eps not in the softmax", exactly(start_eps=0.0), where=shows_eps),
    Fault("eps not in the denominators", exactly(eps=0.0), where=shows_eps),
    Fault("eps after the division", exactly(eps=0.0, after=1e-6), where=shows_eps),
    Fault("eps ten times too large", specification(eps=1e-5), where=shows_eps),
    *(Fault(name, after(change)) for name, change in DAMAGES.items()),
    Fault("padding counted", padding_counted, where=lambda w: w.name == "tail_5x3"),
    Fault("mask softened", mask_softened, where=lambda w: w.logits == "masked"),
    Fault("bfloat16 accumulator", dividing(Arithmetic(partial=bfloat16)), where=is_wide),
    Fault("bfloat16 iterates", dividing(iterate=bfloat16), where=is_wide),
    Fault("logits rounded to bfloat16", lambda w, x, dy: pytorch(w, x.bfloat16().float(), dy),
          where=needs_float32),
    Fault("TF32 products", scaling(Arithmetic(operand=lambda t: keep_bits(t, 10))),
          where=lambda w: is_wide(w) and w.n_iters > 1),
    Fault("reciprocal of 8 bits", dividing(Arithmetic(
        multiplies=True, inverse=lambda t: keep_bits(t, 8))), where=is_wide),
    Fault("exponential of 12 bits", dividing(Arithmetic(exp_ulps=2.0**11)), where=is_wide),
    Fault("result truncated", truncated_result, where=is_narrow),
    Fault("narrow arithmetic throughout", narrow_throughout, where=is_narrow),
    Fault("gradient without the eps terms", other_gradient(specification(eps=0.0)), ("dX",), shows_eps),
    Fault("first sums taken for constants", in_float64(without_first_sums), ("dX",)),
    Fault("gradient through stopped scaling vectors", stopped_scaling, ("dX",)),
    Fault("implicit gradient passed off as exact", implicit, ("dX",)),
    Fault("gradient of the second half only", other_gradient(in_float64(second_half)), ("dX",),
          lambda w: w.n_iters > 1),
    Fault("restarts three times too far apart", restarting_late,
          where=lambda w: w.logits == "shared_column"),
    Fault("u again without its term in eps^2", lean, ("dX",), loses_by_lean),
    Fault("a neighbour's gradient leaks in", neighbour_leaks, ("dX",)),
    Fault("cotangents of u and v by recurrence", recurrence(), ("dX",), loses_by_recurrence),
]  # fmt: skip


def named(run: Run) -> gate.Run:
    """The results by name, none where the implementation is not for the workload."""

    def results(w, x, dy):
        found = run(w, x, dy)
        return dict(zip(("P", "dX"), found, strict=True)) if found else {}

    return results


def before_overflow(run: gate.Run) -> gate.Run:
    """Without dX where dA, which `scaling_form` carries over restarts, leaves float32; kernels carry A dA."""
    return lambda w, x, dy: {
        name: t for name, t in run(w, x, dy).items() if name == "P" or w.logits != "shared_column"
    }


GOOD = {
    name: before_overflow(named(run)) if name.startswith("u-v") else named(run) for name, run in _GOOD.items()
}
FAULTS = [replace(fault, run=named(fault.run)) for fault in _FAULTS]
BASELINE = named(pytorch)
VENDORS = {vendor: before_overflow(named(scaling(a))) for vendor, a in arithmetic.VENDORS.items()}
