"""From tensors to launches of the dot compress kernels: views, scratch, the choice of a config."""

from __future__ import annotations

import torch

from helion_sinkhorn.kernels import Choice, build, power_of_two
from helion_sinkhorn.kernels.dispatch import run
from helion_sinkhorn.kernels.launch import index_of, matrices

SMALLEST_BLOCK = 16
"""Least extent of a matrix product on any of the targets."""


def blocks(d: int, k: int) -> tuple[int, int]:
    """The extents of a program's share of b."""
    return max(SMALLEST_BLOCK, power_of_two(d)), max(SMALLEST_BLOCK, power_of_two(k))


def scratch(x: torch.Tensor, k: int, splits: int, ring: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(partial sums of `ring` elements, counters); next to nothing where programs need not wait."""
    if splits == 1:
        return x.new_empty(1, 1, 1, dtype=torch.float32), x.new_empty(1, dtype=torch.int32)
    partial = x.new_empty(ring * splits, x.size(2), k, dtype=torch.float32)
    return partial, x.new_zeros(2 * x.size(0), dtype=torch.int32)


def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int, choice: Choice
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K)."""
    x, y = matrices(x), matrices(y)
    z = None if z is None else matrices(z)
    d, k = x.size(2), y.size(2)
    out, b = torch.empty_like(y, memory_format=torch.contiguous_format), x.new_empty(x.size(0), parts, d, k)
    splits, ring = (dict(choice.variant)[name] for name in ("splits", "ring"))
    constants = d, k, *blocks(d, k), splits, ring, parts, z is not None, index_of(x) is None
    kernel = build(choice.kernel, choice.config, index_of(x) is None)
    run(kernel, x, y, z, out, b, *scratch(x, k, splits, ring), *constants)
    return out, b


def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor, choice: Choice
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dx, dy, db); db is like b (B, parts, D, K)."""
    grad, x, y = matrices(grad), matrices(x), matrices(y)
    d, k, parts = x.size(2), y.size(2), b.size(1)
    dx, dy = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, y))
    db = torch.empty_like(b)
    splits, ring = (dict(choice.variant)[name] for name in ("splits", "ring"))
    constants = d, k, *blocks(d, k), splits, ring, parts, index_of(x) is None
    kernel = build(choice.kernel, choice.config, index_of(x) is None)
    run(kernel, grad, x, y, b, dx, dy, db, *scratch(x, k, splits, ring), *constants)
    return dx, dy, db
