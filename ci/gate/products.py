"""Products of matrices, as kernels and matrix units may add them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch

from ci.gate.arithmetic import bfloat16, keep_bits

Rounding = Callable[[torch.Tensor], torch.Tensor]
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
SLAB = 32


def plain(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def in_float64(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).float()


def slabs(a: torch.Tensor, b: torch.Tensor, depth: int) -> list[torch.Tensor]:
    """The products of `depth` terms each that add up to a b, in float64."""
    return [x @ y for x, y in zip(a.double().split(depth, -1), b.double().split(depth, -2), strict=True)]


def in_order(a, b, depth: int = SLAB, add: Rounding = lambda t: t.float(), backwards: bool = False):
    """Slab after slab onto an accumulator, each sum brought to float32 by `add`."""
    total = torch.zeros((), dtype=torch.float64)
    parts = slabs(a, b, depth)
    for part in reversed(parts) if backwards else parts:
        total = add(total + part).double()
    return total.float()


def tree(a, b):
    parts = [part.float() for part in slabs(a, b, SLAB)]
    while len(parts) > 1:
        parts = [sum(parts[k : k + 2]) for k in range(0, len(parts), 2)]
    return parts[0]


def split(a, b, count: int, product: Product = plain):
    """Split-K: `count` ranges of the terms, each a product."""
    size = max(1, math.ceil(a.size(-1) / count))
    ranges = zip(a.split(size, -1), b.split(size, -2), strict=True)
    return functools.reduce(torch.add, [product(x, y) for x, y in ranges])


def permuted(a, b):
    order = torch.randperm(a.size(-1), generator=torch.Generator().manual_seed(0))
    return plain(a[..., order], b[..., order, :])


def in_tf32x3(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Three products of TF32 parts, added in float32."""
    high_a, high_b = keep_bits(a, 10), keep_bits(b, 10)
    low_a, low_b = keep_bits(a - high_a, 10), keep_bits(b - high_b, 10)
    return high_a @ high_b + (high_a @ low_b + low_a @ high_b)


def cut(t: torch.Tensor) -> torch.Tensor:
    """To float32, toward zero: an NVIDIA matrix unit (arXiv 2511.10909)."""
    near = t.float()
    return torch.where(near.double().abs() > t.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def floored(t: torch.Tensor) -> torch.Tensor:
    """To float32, down: the accumulator of a CDNA3 matrix unit (the same)."""
    near = t.float()
    return torch.where(near.double() > t, torch.nextafter(near, torch.full_like(near, -math.inf)), near)


def to_bfloat16(t: torch.Tensor) -> torch.Tensor:
    return bfloat16(t.float())
