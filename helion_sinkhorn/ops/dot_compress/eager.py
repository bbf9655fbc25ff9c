"""Dot compress in PyTorch: what a CPU runs, and a GPU for float64 or sizes beyond the kernels.

It rounds where the kernels round: sums are in float32, b and db are `parts` numbers of the dtype of x.  An
element's bits do not depend on the batch; only a piece of the batch is copied to float32 at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.runtime.batched_products import fewest, products
from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import COMPUTING, pieces
from helion_sinkhorn.runtime.wanted import Some, room_for


def _split(wide: torch.Tensor, dtype: torch.dtype, parts: int) -> torch.Tensor:
    """(B, parts, D, K): wide rounded to dtype, and then its rounding errors."""
    high = wide.to(dtype)
    return high.unsqueeze(1) if parts == 1 else torch.stack([high, (wide - high).to(dtype)], 1)


def _joined(split: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """(B, D, K): the sum of the parts that `_split` made."""
    wide = split.to(dtype)
    return wide.squeeze(1) if wide.size(1) == 1 else wide.sum(1)


@float32_products()
def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K)."""
    (count, m, d), k, dtype = x.shape, y.size(2), COMPUTING[x.dtype]
    least = fewest(m * (d + k), x.device)
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    b = x.new_empty(count, parts, d, k)
    for at in pieces(count, m * (d + k), least):
        wide = x[at].to(dtype)
        product = products(wide, y[at].to(dtype), least, turn_a=True)
        b[at] = split = _split(product if z is None else product.add_(z[at]), x.dtype, parts)
        out[at] = products(wide, _joined(split, dtype), least)
    return out, b


@float32_products()
def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor,
    wanted: Sequence[bool] = (True,) * 3,
) -> tuple[Some, ...]:  # fmt: skip
    """(dx, dy, db), None for each that is not wanted; db is (B, parts, D, K) like b."""
    (count, m, d), k, dtype = x.shape, y.size(2), COMPUTING[x.dtype]
    least = fewest(m * (d + k), x.device)
    dx, dy, db = room_for((x, y, b), wanted)
    for at in pieces(count, m * (d + k), least):
        wide, g = x[at].to(dtype), grad[at].to(dtype)
        split = _split(products(wide, g, least, turn_a=True), x.dtype, b.size(1))
        dproduct = _joined(split, dtype)
        if db is not None:
            db[at] = split
        if dx is not None:
            through = products(g, _joined(b[at], dtype), least, turn_b=True)
            dx[at] = through.add_(products(y[at].to(dtype), dproduct, least, turn_b=True))
        if dy is not None:
            dy[at] = products(wide, dproduct, least)
    return dx, dy, db
