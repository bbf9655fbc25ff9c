"""The true value of a result, and its error in units of what correct rounding can cause.

Four statistics of e = (result - truth) / spread over the tested matrices, each with a derived limit:

    worst   largest |error| / budget, at most 1: an `error_budget`, five deviations of the rounding model
            plus half a unit in the last place of a narrow result.  Finds what is wrong in one place.
    rms     root mean square of e, at most 1: the model gives every rounding the size of its bound, so no
            arithmetic within the bounds exceeds it.  Finds what is a little wrong everywhere.
    bias    mean of sign(truth) e, at most that of functions wrong by their bound to one side, plus five
            standard errors.  Finds what is very little wrong, but always to the same side.
    parity  the error beside that of float32 PyTorch on the same inputs (Peer): the median of the
            matrices' ratios and the ratio of the worst errors.  Finds arithmetic that is correct for its
            algorithm but worse than what users have.

spread^2 = sigma^2 + half_ulp^2 / 3: the model's deviation, and one rounding to the result's type, uniform in
its interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn.lab import rounding

Named = Mapping[str, torch.Tensor]
JUDGED_STEPS = 1 << 21
"""Entries times iterations of a workload that get a truth and a budget: seconds on one core."""
FEWEST_JUDGED = 4
SYSTEMATIC_MATRICES = 64
PARITY_MEDIAN = 1.5
"""Limit of the median of the matrices' ratios.  Errors of equally good arithmetic differ at random, so their
median ratio is 1; functions of 2 units in the last place instead of 1 make it 1.3 where all matrices are
alike (`make attack WHAT=tables`)."""
PARITY_WORST = 4.0
"""Limit of the ratio of the worst errors.  Each is the extreme of heavy-tailed errors: those of correct
implementations (`ci/fault_tables.py`) differ by up to 3."""


class Systematic(rounding.Rounding):
    """Exponential and reciprocal wrong by their bound to one side in all entries; the rest rounds evenly."""

    def __call__(self, x, size=1.0):
        if size < min(self.EXP, self.RECIPROCAL):
            return x
        sign = 2 * torch.randint(0, 2, (), generator=self.generator).item() - 1
        return x * (1 + sign * size * self.unit)

    def running(self, terms, count):
        return terms


class ToTheBaseTwo(Systematic):
    """Systematic, with arguments of exponentials as one float32 product with log2(e) rounds them.

    Equal logits round alike.  In a batch of one matrix over and over that is an error to one side: with
    logits of -12 every entry beside the diagonal of A is 8 units too large, where EXP is 4.
    """

    def __call__(self, x, size=1.0):
        if size != self.ARGUMENT:
            return super().__call__(x, size)
        log2e = torch.tensor(math.log2(math.e), dtype=x.dtype)
        return (x.float() * log2e.float()).to(x.dtype) / log2e


@dataclass(frozen=True)
class Peer:
    """PyTorch's errors in float32 on some inputs, and the floor of each matrix, both relative to `scale`."""

    scale: torch.Tensor
    """What an error of an entry is relative to."""
    errors: torch.Tensor
    floor: torch.Tensor

    def ratios(self, result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
        """(median of the matrices' ratios of errors, ratio of the worst); errors below the floor count as
        equal."""
        own = torch.maximum(largest_error(result, exact, self.scale), self.floor)
        return (own / self.errors).median().item(), (own.max() / self.errors.max()).item()


def largest_error(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """The largest error of each matrix; where nothing is expected (NaN), NaN is right."""
    error = (result.detach().to("cpu", torch.float64) - exact).abs() / scale
    error = torch.where(exact.isnan() & result.detach().cpu().isnan(), 0.0, error)
    return error.nan_to_num(nan=torch.inf).amax((-2, -1))


@dataclass(frozen=True)
class Statistics:
    """The statistics of one result; `passes` is the verdict."""

    worst: float
    z: float
    rms: float
    bias: float
    bias_limit: float
    largest_absolute: float
    largest_relative: float
    index: tuple[int, ...]
    """Matrix, row and column of the worst element."""
    value: float
    expected: float
    parity: float = 0.0
    parity_worst: float = 0.0

    @property
    def passes(self) -> bool:
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """The statistics beyond their limit; NaN is beyond every limit."""
        within = {
            "worst": self.worst <= 1,
            "rms": self.rms <= 1,
            "bias": abs(self.bias) <= self.bias_limit,
            "parity": self.parity <= PARITY_MEDIAN and self.parity_worst <= PARITY_WORST,
        }
        return [name for name, holds in within.items() if not holds]


@dataclass(frozen=True)
class Truth:
    """One result of a workload in float64, with its derived limits."""

    exact: torch.Tensor
    budget: torch.Tensor
    spread: torch.Tensor
    scale: torch.Tensor
    """What an error is relative to."""
    systematic: float
    """The largest bias of functions that err to one side."""
    distinct: int
    """Matrices that differ."""
    together: tuple[int, ...]
    """Axes along which errors may go together: their means are independent."""
    dtype: torch.dtype
    """What the result must have."""
    peer: Peer | None = None
    """What parity is tested by, where it is."""

    @classmethod
    def of(
        cls,
        exact: torch.Tensor,
        budget: torch.Tensor,
        dtype: torch.dtype,
        *,
        gradient: bool = True,
        systematic: float = 0.0,
        leaning: torch.Tensor | None = None,
        together: tuple[int, ...] = (-1,),
        peer: Peer | None = None,
    ) -> Truth:
        """A result all of whose elements differ.

        Args:
            gradient: whether an error is relative to the largest entry, since those of gradients cancel.
            systematic: the largest bias of functions that err to one side.
            leaning: the part of an error that is all to one side, towards 0.
        """
        scale = largest(exact) if gradient else noticeable(exact)
        spreads = spread(exact, budget, dtype)
        if leaning is not None:
            systematic += (leaning / spreads).mean().item()
        return cls(exact, budget, spreads, scale, systematic, len(exact), together, dtype, peer)

    def worst(self, result: torch.Tensor) -> float:
        """The largest error in units of its budget."""
        return rounding.worst(result, self.exact, self.budget)

    def judge(self, result: torch.Tensor) -> Statistics:
        """The statistics of a result of any dtype."""
        actual = result.detach().to("cpu", torch.float64)
        worst = self.worst(actual)
        error = (actual - self.exact).nan_to_num(nan=math.inf)
        ratio = torch.where(error == 0, 0.0, error / self.spread)
        place = torch.where(error == 0, 0.0, error.abs() / self.budget).argmax().item()
        where = tuple(int(k) for k in torch.unravel_index(torch.tensor(place), error.shape))
        parts = (ratio * self.exact.sign()).mean(self.together)
        parity, parity_worst = self.peer.ratios(result, self.exact) if self.peer else (0.0, 0.0)
        deviation = parts.square().mean().sqrt().item() / math.sqrt(self.distinct * parts[0].numel())
        return Statistics(
            worst=worst,
            z=ratio.abs().max().item(),
            rms=ratio.square().mean().sqrt().item(),
            bias=parts.mean().item(),
            bias_limit=self.systematic + rounding.SIGMAS * deviation,
            largest_absolute=error.abs().max().item(),
            largest_relative=(error.abs() / self.scale).max().item(),
            index=where,
            value=actual[where].item(),
            expected=self.exact[where].item(),
            parity=parity,
            parity_worst=parity_worst,
        )


def one_sided(runs: Iterable[Named], exact: Named, spreads: Named) -> dict[str, float]:
    """The largest bias of each result, in spreads, in runs of functions that err to one side."""
    most = dict.fromkeys(exact, 0.0)
    for run in runs:
        for name, t in exact.items():
            most[name] = max(most[name], abs(bias(run[name], t, spreads[name])))
    return most


def spread(exact: torch.Tensor, budget: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The deviation that an error budget is made of, with that of the last rounding, which is uniform."""
    half = rounding.half_ulp(exact, dtype)
    return (((budget - half) / rounding.SIGMAS).square() + half.square() / 3).sqrt()


def judged(workload: Any, steps: int = JUDGED_STEPS) -> int:
    """How many matrices of a workload get a budget."""
    size = workload.n * workload.m * workload.n_iters
    return min(workload.batch, max(FEWEST_JUDGED, steps // size))


def largest(t: torch.Tensor) -> torch.Tensor:
    """The largest entry of each matrix, in place of all."""
    return t.abs().amax((-2, -1), keepdim=True).expand_as(t)


def noticeable(t: torch.Tensor) -> torch.Tensor:
    """Entries, but at least 2^-20 of the largest of their matrix: what has almost vanished has no digits."""
    return torch.maximum(t.abs(), 2.0**-20 * largest(t))


def bias(result: torch.Tensor, exact: torch.Tensor, spread: torch.Tensor) -> float:
    """The mean error towards the sign of the truth, in spreads."""
    error = torch.where(result == exact, 0.0, (result - exact) / spread)
    return (error * exact.sign()).mean().item()
