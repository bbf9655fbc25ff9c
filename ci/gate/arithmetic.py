"""Float32 arithmetic as vendors, compilers and kernels may choose it, emulated in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


def through(x: torch.Tensor, emulated: torch.Tensor) -> torch.Tensor:
    """The value `emulated` with the gradient of x."""
    return x + (emulated - x).detach()


def keep_bits(x: torch.Tensor, bits: int) -> torch.Tensor:
    """x with its significand cut to `bits` explicit bits, as by a table or a shift."""
    mask = -(1 << (23 - bits))
    return through(x, (x.detach().view(torch.int32) & mask).view(torch.float32))


def truncated(workload: Any, x: torch.Tensor) -> torch.Tensor:
    """x cut to the significand of the narrow dtype of a workload."""
    return keep_bits(x, {torch.bfloat16: 7, torch.float16: 10}[workload.dtype])


def rounded_down(workload: Any, x: torch.Tensor) -> torch.Tensor:
    """x rounded down to the dtype of a workload."""
    near = x.to(workload.dtype)
    return torch.where(near.float() > x, torch.nextafter(near, torch.full_like(near, -torch.inf)), near)


def half_up(workload: Any, x: torch.Tensor) -> torch.Tensor:
    """x rounded to bfloat16 by adding half a unit and cutting, so that ties go away from zero."""
    return (x.contiguous().view(torch.int32) + 0x8000 & -0x10000).view(torch.float32)


def bfloat16(x: torch.Tensor) -> torch.Tensor:
    """x rounded to bfloat16, still float32."""
    return through(x, x.detach().bfloat16().float())


def off_by(x: torch.Tensor, ulps: float) -> torch.Tensor:
    """x wrong by up to `ulps` units in the last place, the same for the same x as in a function unit."""
    if not ulps:
        return x
    value = x.detach()
    hashed = (value.view(torch.int32).long() * 2654435761) & 0xFFFFFFFF
    unit = hashed.double() / 2.0**31 - 1.0
    last_place = torch.exp2(torch.frexp(value).exponent.double() - 24.0)
    return through(x, torch.where(value == 0, value, (value + ulps * unit * last_place).float()))


@dataclass(frozen=True)
class Arithmetic:
    """How one implementation computes in float32; also the `rounding` of lab.sinkhorn.budget.scaling_form.

    exp_ulps, reciprocal_ulps: largest error of the functions, beside one rounding to nearest.
    multiplies: a / b is a times the reciprocal of b; else it is rounded correctly.
    """

    sums: str = "sequential"
    fused: bool = False
    exp_ulps: float = 0.0
    reciprocal_ulps: float = 0.0
    multiplies: bool = False
    operand: Callable[[torch.Tensor], torch.Tensor] = lambda x: x
    partial: Callable[[torch.Tensor], torch.Tensor] = lambda x: x

    ARGUMENT = 3.0
    EXP = "exp"
    RECIPROCAL = "reciprocal"

    def next_iteration(self) -> None:
        """Nothing is drawn at random."""

    def __call__(self, x, size=1.0):
        if size == self.EXP:
            return off_by(x, self.exp_ulps)
        if size == self.RECIPROCAL:
            return off_by(x, self.reciprocal_ulps)
        return x

    def sum(self, terms: torch.Tensor, axis: int) -> torch.Tensor:
        parts = list(terms.split(1, axis))
        if self.sums == "backwards":
            parts.reverse()
        if self.sums == "tree":
            while len(parts) > 1:
                half = (len(parts) + 1) // 2
                parts = [a + b for a, b in zip(parts, parts[half:], strict=False)] + parts[
                    len(parts) - half : half
                ]
            return parts[0]
        total = parts[0]
        for part in parts[1:]:
            total = self.partial(total + part)
        return total

    def dot(self, a: torch.Tensor, w: torch.Tensor, axis: int) -> torch.Tensor:
        a, w = self.operand(a), self.operand(w)
        if not self.fused:
            return self.sum(a * w, axis)
        total = 0.0
        other = -1 if axis == -2 else -2
        pairs = zip(a.split(1, axis), w.split(1, axis), strict=True)
        for x, y in reversed(list(pairs)) if self.sums == "backwards" else pairs:
            total = (x.double() * y.double() + total).float()
        assert total.size(other) == a.size(other)
        return total

    def divide(self, a: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return a * self(1.0 / total, self.RECIPROCAL) if self.multiplies else a / total


PLAIN = Arithmetic()
# PTX ISA: ex2.approx 2^-22 relative (2 ulp), rcp.approx 1 ulp, div.full a product with it (2 ulp in all)
NVIDIA = Arithmetic(fused=True, exp_ulps=2.0, reciprocal_ulps=1.0, multiplies=True)
# AMD ISA: v_exp_f32 and v_rcp_f32 1 ulp; division by v_div_scale ... v_div_fixup, rounded correctly
AMD = Arithmetic(fused=True, sums="tree", exp_ulps=1.0, reciprocal_ulps=1.0)
VENDORS = {"nvidia": NVIDIA, "amd": AMD}
