"""The gate: a result is judged by its error against float64, in units of what correct rounding can do.

Three statistics of e = (result - truth) / spread over the judged matrices, each with a derived limit:

    worst   largest |error| / budget, at most 1: `testing.error_budget`, five deviations of the rounding model
            plus half a unit in the last place of a narrow result.  Finds what is wrong in one place.
    rms     root mean square of e, at most 1: the model gives every rounding the size of its bound, so no
            arithmetic within the bounds exceeds it.  Finds what is a little wrong everywhere.
    bias    mean of sign(truth) e, at most what functions wrong by their bound to one side do, plus five
            standard errors.  Finds what is very little wrong, but always to the same side.

spread^2 = sigma^2 + half_ulp^2 / 3: the model's deviation, and one rounding to the result's type, uniform in
its interval.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn import testing
from helion_sinkhorn.workloads import Workload

JUDGED_STEPS = 1 << 21
"""Entries times iterations of a workload that get a truth and a budget: seconds on one core."""
FEWEST_JUDGED = 4
SYSTEMATIC_MATRICES = 64


class Systematic(testing.Rounding):
    """Exponential and reciprocal wrong by their bound to one side in all entries; the rest rounds evenly."""

    def __call__(self, x, forward=1.0, backward=None):
        backward = forward if backward is None else backward
        if max(forward, backward) < min(self.EXP, self.RECIPROCAL):
            return x
        signs = torch.randint(0, 2, (2,), generator=self.generator).mul(2).sub(1).tolist()
        return _Scale.apply(x, 1 + signs[0] * forward * self.unit, 1 + signs[1] * backward * self.unit)

    def sum(self, terms, axis):
        return terms.sum(axis, keepdim=True)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.factor = backward
        return x * forward

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None, None


@dataclass(frozen=True)
class Statistics:
    """What the gate knows about one result; `passes` is its verdict."""

    worst: float
    z: float
    rms: float
    bias: float
    bias_limit: float
    largest_absolute: float
    largest_relative: float
    index: tuple[int, int, int]
    """Matrix, row and column of the worst element."""
    value: float
    expected: float

    @property
    def passes(self) -> bool:
        return self.worst <= 1 and self.rms <= 1 and abs(self.bias) <= self.bias_limit

    @property
    def reasons(self) -> list[str]:
        """The statistics beyond their limit."""
        found = [name for name in ("worst", "rms") if not getattr(self, name) <= 1]
        return found if abs(self.bias) <= self.bias_limit else [*found, "bias"]


@dataclass(frozen=True)
class Truth:
    """One result of a workload, "P" or "dX", in float64, with what the gate derives for it."""

    exact: torch.Tensor
    budget: torch.Tensor
    spread: torch.Tensor
    scale: torch.Tensor
    """Of SCALES."""
    systematic: float
    distinct: int
    lead: int
    """The axis along which entries share a trail line."""

    def judge(self, result: torch.Tensor) -> Statistics:
        """The statistics of a result (K, n, m) of any dtype."""
        actual = result.detach().to("cpu", torch.float64)
        worst = testing.worst(actual, self.exact, self.budget)
        error = (actual - self.exact).nan_to_num(nan=math.inf)
        ratio = torch.where(error == 0, 0.0, error / self.spread)
        place = torch.where(error == 0, 0.0, error.abs() / self.budget).argmax().item()
        where = tuple(int(k) for k in torch.unravel_index(torch.tensor(place), error.shape))
        # trail lines are normalised last, each by its own sum: their means are independent
        lines = (ratio * self.exact.sign()).mean(self.lead)
        deviation = lines.square().mean().sqrt().item() / math.sqrt(self.distinct * lines.size(-1))
        return Statistics(
            worst=worst,
            z=ratio.abs().max().item(),
            rms=ratio.square().mean().sqrt().item(),
            bias=lines.mean().item(),
            bias_limit=self.systematic + testing.SIGMAS * deviation,
            largest_absolute=error.abs().max().item(),
            largest_relative=(error.abs() / self.scale).max().item(),
            index=where,
            value=actual[where].item(),
            expected=self.exact[where].item(),
        )


def judged(workload: Workload, steps: int = JUDGED_STEPS) -> int:
    """How many matrices of a workload get a budget."""
    size = workload.n * workload.m * workload.n_iters
    return min(workload.batch, max(FEWEST_JUDGED, steps // size))


def truths(workload: Workload, x: torch.Tensor, dy: torch.Tensor) -> dict[str, Truth]:
    """{"P": ..., "dX": ...} for these inputs of a workload."""
    exact = testing.exact(x, dy, **workload.options)
    budgets = testing.error_budget(x, dy, **workload.options, out_dtype=workload.dtype)
    distinct = len(torch.unique(x, dim=0))
    found = {}
    for k, name in enumerate(("P", "dX")):
        half = testing.half_ulp(exact[k], workload.dtype)
        spread = (((budgets[k] - half) / testing.SIGMAS).square() + half.square() / 3).sqrt()
        found[name] = exact[k], budgets[k], spread
    lead = -2 if workload.first == "rows" else -1
    biases = systematic(workload, x, dy, exact, [found[name][2] for name in found])
    return {
        # all judged gradients are as different as their cotangents
        "P": Truth(*found["P"], SCALES["P"](exact[0]), biases[0], distinct, lead),
        "dX": Truth(*found["dX"], SCALES["dX"](exact[1]), biases[1], len(x), lead),
    }


def largest(t: torch.Tensor) -> torch.Tensor:
    """The largest entry of each matrix, in place of all."""
    return t.abs().amax((-2, -1), keepdim=True).expand_as(t)


def noticeable(t: torch.Tensor) -> torch.Tensor:
    """Entries, but at least 2^-20 of the largest of their matrix: what has almost vanished has no digits."""
    return torch.maximum(t.abs(), 2.0**-20 * largest(t))


SCALES = {"P": noticeable, "dX": largest}
"""What an error is relative to: entries of a gradient cancel, so the largest of a matrix serves them all."""


def systematic(workload: Workload, x, dy, exact, spreads) -> list[float]:
    """The largest bias, in spreads, of P and of dX under Systematic."""
    few = slice(SYSTEMATIC_MATRICES)
    x64, dy64 = x[few].double(), dy[few].double()
    most = [0.0, 0.0]
    for seed in range(testing.SAMPLES):
        leaf = x64.clone().requires_grad_()
        p = testing.scaling_form(leaf, *workload.arguments, Systematic(seed))
        (dx,) = torch.autograd.grad(p, leaf, dy64)
        for k, result in enumerate((p.detach(), dx)):
            error = torch.where(result == exact[k][few], 0.0, (result - exact[k][few]) / spreads[k][few])
            most[k] = max(most[k], abs((error * exact[k][few].sign()).mean().item()))
    return most


def gap(of: str, a: torch.Tensor, b: torch.Tensor) -> dict[str, float]:
    """How far two results (K, n, m) of one dtype are apart; reported, never judged.

    relative and ulps (of their dtype) are those of the SCALES of `of`; flips: share of entries that differ
    after rounding to bfloat16.
    """
    kind = torch.finfo(a.dtype)
    a, b = a.detach().double(), b.detach().double()
    scale = torch.maximum(SCALES[of](a), SCALES[of](b)).clamp_min(kind.smallest_normal)
    place = kind.eps * torch.exp2(torch.frexp(scale).exponent.double() - 1)
    distance = (a - b).abs()
    return {
        "largest": distance.max().item(),
        "largest_relative": (distance / scale).max().item(),
        "largest_ulps": (distance / place).max().item(),
        "mean_ulps": (distance / place).mean().item(),
        "flips": (a.bfloat16() != b.bfloat16()).double().mean().item(),
    }
