"""From tensors to launches of the dot compress kernels: views, slices of the batch, the choice of configs."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from helion_sinkhorn.kernels import Choice, build, launch
from helion_sinkhorn.kernels.dot_compress_space import DotCall, padded

SLICE_BYTES = 48 << 20
"""Of x in a pair of launches: the second finds part of what the first read in the last-level cache."""


def call_of(x: torch.Tensor, y: torch.Tensor, parts: int) -> DotCall:
    """What the configs for x (B, M, D) and y (B, M, K) are chosen for."""
    return DotCall(str(x.dtype)[6:], x.size(1), x.size(2), y.size(2), parts)


def chosen(kernel: str, call: DotCall, batch: int, x: torch.Tensor, choice: Choice | None) -> tuple:
    """(built kernel, its variant by name, interpret)."""
    device, _, interpret = launch.device_at(launch.index_of(x))
    choice = choice or launch.choose(kernel, call, batch, device)
    return build(choice.kernel, choice.config, interpret), dict(choice.variant), interpret


def product(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, b: torch.Tensor, choice: Choice | None = None
) -> None:
    """b (B, parts, D, K) = x'y + z."""
    call = call_of(x, y, b.size(1))
    kernel, variant, interpret = chosen("dot_compress_product", call, x.size(0), x, choice)
    blocks = variant["block_d"], padded(call.k)
    launch.run(kernel, x, y, z, b, call.d, call.k, *blocks, call.parts, z is not None, interpret)


def apply(x: torch.Tensor, b: torch.Tensor, out: torch.Tensor, choice: Choice | None = None) -> None:
    """out (B, M, K) = x b."""
    call = call_of(x, out, b.size(1))
    kernel, variant, interpret = chosen("dot_compress_apply", call, x.size(0), x, choice)
    blocks = variant["block_d"], padded(call.k), variant["rows"]
    launch.run(kernel, x, b, out, call.d, call.k, *blocks, call.parts, interpret)


def expand(
    grad: torch.Tensor,
    y: torch.Tensor,
    b: torch.Tensor,
    db: torch.Tensor,
    dx: torch.Tensor,
    choice: Choice | None = None,
) -> None:
    """dx (B, M, D) = grad b' + y db'."""
    call = call_of(dx, y, b.size(1))
    kernel, variant, interpret = chosen("dot_compress_expand", call, dx.size(0), dx, choice)
    blocks = variant["block_d"], padded(call.k), variant["rows"]
    launch.run(kernel, grad, y, b, db, dx, call.d, call.k, *blocks, call.parts, interpret)


def slices(x: torch.Tensor) -> Iterator[slice]:
    """The batch in parts of SLICE_BYTES of x, as even as may be."""
    element = x.size(1) * x.size(2) * x.element_size()
    count = max(1, round(x.size(0) * element / SLICE_BYTES))
    size = -(-x.size(0) // count)
    return (slice(begin, begin + size) for begin in range(0, x.size(0), size))


def forward(
    x: torch.Tensor, y: torch.Tensor, z: torch.Tensor | None, parts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, b) for x (B, M, D), y (B, M, K), z (B, D, K); b is (B, parts, D, K)."""
    x, y = launch.matrices(x), launch.matrices(y)
    z = None if z is None else launch.matrices(z)
    out = torch.empty_like(y, memory_format=torch.contiguous_format)
    b = torch.empty((x.size(0), parts, x.size(2), y.size(2)), dtype=x.dtype, device=x.device)
    for rows in slices(x):
        product(x[rows], y[rows], None if z is None else z[rows], b[rows])
        apply(x[rows], b[rows], out[rows])
    return out, b


def backward(
    grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(dx, dy, db); db is like b (B, parts, D, K)."""
    grad, x, y, b = launch.matrices(grad), launch.matrices(x), launch.matrices(y), b.contiguous()
    dx, dy = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (x, y))
    db = torch.empty_like(b)
    for rows in slices(x):
        product(x[rows], grad[rows], None, db[rows])
        apply(x[rows], db[rows], dy[rows])
        expand(grad[rows], y[rows], b[rows], db[rows], dx[rows])
    return dx, dy, db
