"""A model of float32 rounding: the unit, and perturbations at the places where a kernel rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

UNIT = 2.0**-24
"""Unit roundoff of the computing type, float32."""
SAMPLES = 16
"""Runs of the model; a standard deviation out of 16 is known to a fifth."""
SIGMAS = 5.0


def chain(count: int) -> float:
    """The error of a term in a sum of `count` terms, in units: its own rounding and those of additions.

    If terms are added one after another, all have count^3 / 3 squared units together.
    """
    return 1.0 + count / math.sqrt(3.0)


def tree(count: int) -> float:
    """The error of a term with at most 2 sqrt(count) additions in a chain: a tree, or a loop over tiles."""
    return 1.0 + 2.0 * math.sqrt(count)


@dataclass(frozen=True)
class Rounding:
    """The rounding points of the kernels, each a bound in units of roundoff; unit=0 makes the model exact."""

    seed: int
    unit: float = UNIT
    generator: torch.Generator = field(default_factory=torch.Generator)

    ARGUMENT = 3.0
    """The error of the exponential's argument, relative to it: x - max, times log2(e), and that constant."""
    EXP = 4.0
    """ex2.approx: 2^-22."""
    RECIPROCAL = 4.0
    """Two units for a one-instruction reciprocal, and two products where it is shared by a pair."""

    @classmethod
    def on(cls, device: torch.device | str, seed: int, unit: float = UNIT) -> Rounding:
        """Errors that are drawn on the device of what is rounded."""
        return cls(seed, unit, torch.Generator(device))

    def next_iteration(self) -> None:
        """Errors repeat from here: near a fixed point iterations round the same numbers the same way."""
        self.generator.manual_seed(self.seed)

    def __call__(self, x: torch.Tensor, size: float = 1.0) -> torch.Tensor:
        """x with a relative error of `size` units in each entry, up or down at random."""
        draws = self.generator
        signs = torch.randint(0, 2, x.shape, generator=draws, dtype=torch.int8, device=draws.device)
        return x * signs.to(x.dtype).mul_(2.0 * size * self.unit).add_(1.0 - size * self.unit)

    def running(self, terms: torch.Tensor, count: int) -> torch.Tensor:
        """Terms of a sum of `count`, one after another."""
        return self(terms, chain(count))

    def sum(self, terms: torch.Tensor, axis: int) -> torch.Tensor:
        return self.running(terms, terms.size(axis)).sum(axis, keepdim=True)

    def dot(self, a: torch.Tensor, w: torch.Tensor, axis: int) -> torch.Tensor:
        """The sum of a w; an implementation may fuse its products."""
        return self.sum(a * w, axis)


def variances(
    exact: dict[str, torch.Tensor],
    run: Callable[[Rounding], Mapping[str, torch.Tensor]],
    device: torch.device | str = "cpu",
    seed: int = 0,
    unit: float = UNIT,
) -> dict[str, torch.Tensor]:
    """The mean square of what SAMPLES runs with random errors differ by from the exact results."""
    squares = {name: torch.zeros_like(t) for name, t in exact.items()}
    for k in range(SAMPLES):
        error = Rounding.on(device, seed + k, unit)
        error.next_iteration()
        sample = run(error)
        for name, t in exact.items():
            squares[name] += (sample[name] - t).square()
    return {name: t / SAMPLES for name, t in squares.items()}


def tf32(t: torch.Tensor) -> torch.Tensor:
    """The nearest number of 11 bits."""
    bits = t.float().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32).to(t.dtype)


def tf32_cut(t: torch.Tensor) -> torch.Tensor:
    """The leading 11 bits."""
    return (t.float().view(torch.int32) & ~0x1FFF).view(torch.float32).to(t.dtype)


def bfloat16_parts(t: torch.Tensor, count: int) -> list[torch.Tensor]:
    """bfloat16 numbers that add up to t, each the nearest to what the ones before it left."""
    parts, left = [], t
    for _ in range(count):
        parts.append(left.bfloat16().to(t.dtype))
        left = left - parts[-1]
    return parts


def half_ulp(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error of rounding `exact` to `dtype` once; float32 is the arithmetic itself and adds nothing."""
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(exact)
    kind = torch.finfo(dtype)
    return exact.abs() * (kind.eps / 2) + kind.smallest_normal * kind.eps / 2


def worst(actual: torch.Tensor, expected: torch.Tensor, budget: torch.Tensor) -> float:
    """The largest error in units of its budget: at most 1 passes.  NaN only where NaN is expected."""
    actual = actual.detach().to("cpu", torch.float64)
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() == 0:
        return 0.0
    error = (actual - expected).abs()
    ratio = torch.where(error == 0, 0.0, error / budget)
    ratio = torch.where(expected.isnan() & actual.isnan(), 0.0, ratio)
    return ratio.nan_to_num(nan=math.inf).max().item()
