"""Dot compress in PyTorch: what a CPU runs, and a GPU for float64 or sizes beyond the kernels'.

The roundings are those of the kernels: sums in float32, b and db in `parts` numbers of the dtype of x.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import computing


def _split(wide: torch.Tensor, dtype: torch.dtype, parts: int) -> torch.Tensor:
    """(parts, D, K): wide rounded to dtype, then what that left."""
    high = wide.to(dtype)
    return high.unsqueeze(0) if parts == 1 else torch.stack([high, (wide - high).to(dtype)])


def _wide(t: torch.Tensor) -> torch.Tensor:
    """In the type of the sums, contiguous: the order of a sum may follow the layout."""
    return t.to(computing(t.dtype)).contiguous()


def _in_place(parts: int, *tensors: torch.Tensor | None) -> bool:
    """Whether products can be written to where they belong, of factors that need no copy.

    The order of a sum may follow the alignment of the result: each element begins at a 64-byte boundary.
    """
    given = [t for t in tensors if t is not None]
    return parts == 1 and all(
        t.dtype == computing(given[0].dtype) and t.is_contiguous() and t[0].numel() % 16 == 0 for t in given
    )


@float32_products()
def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K)."""
    out = torch.empty(y.shape, dtype=y.dtype, device=y.device)
    b = x.new_empty(x.size(0), parts, x.size(2), y.size(2))
    if x.size(0) and _in_place(parts, x, y, b):
        for e, (a, c, product, made) in enumerate(zip(x, y, b.squeeze(1), out, strict=True)):
            torch.mm(a.mT, c, out=product)
            if z is not None:
                product += _wide(z[e])
            torch.mm(a, product, out=made)
        return out, b
    # one element at a time: bits do not depend on the batch, and its float32 copy is all that is kept
    for e in range(x.size(0)):
        wide = _wide(x[e])
        product = wide.mT @ _wide(y[e])
        b[e] = _split(product if z is None else product + _wide(z[e]), x.dtype, parts)
        out[e] = wide @ _wide(b[e]).sum(0)
    return out, b


@float32_products()
def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dx, dy, db); db is like b (B, parts, D, K)."""
    dx, dy, db = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, y, b))
    if x.size(0) and _in_place(b.size(1), grad, x, y, b):
        given = x, y, grad, b.squeeze(1), dx, dy, db.squeeze(1)
        for a, c, g, product, of_a, of_c, of_product in zip(*given, strict=True):
            torch.mm(a.mT, g, out=of_product)
            torch.mm(g, product.mT, out=of_a)
            of_a += c @ of_product.mT
            torch.mm(a, of_product, out=of_c)
        return dx, dy, db
    for e in range(x.size(0)):
        wide, g = _wide(x[e]), _wide(grad[e])
        db[e] = _split(wide.mT @ g, x.dtype, b.size(1))
        b_sum, db_sum = _wide(b[e]).sum(0), _wide(db[e]).sum(0)
        dx[e] = g @ b_sum.mT + _wide(y[e]) @ db_sum.mT
        dy[e] = wide @ db_sum
    return dx, dy, db
