"""hc_mixes in PyTorch: what a CPU runs, and a GPU for float64.

Products are made in chunks of one shape, each in the same buffer, whose rows begin at 64-byte boundaries: a
matrix product's rows are then summed alike, while their order would follow the count of rows and their
alignment.  That costs no time: a chunk stays in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import computing

CHUNK = 32
"""Tokens of a chunk on a CPU: one alone costs as much as all."""
CHUNK_ON_GPU = 4096
ALIGNED = 16
"""Entries that rows are padded to a multiple of: 64 bytes of float32."""


def _aligned(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _projection(x: torch.Tensor, fn: torch.Tensor) -> torch.Tensor:
    """fn in the computing dtype, rows and columns padded with zeros."""
    m, k = fn.shape
    padded = torch.zeros(_aligned(m), _aligned(k), dtype=computing(x.dtype), device=x.device)
    padded[:m, :k] = fn
    return padded


def _chunks(*tensors: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """(tokens as a slice, their rows of each tensor in buffers of one shape, zeros behind them)."""
    first = tensors[0]
    chunk = CHUNK_ON_GPU if first.is_cuda else CHUNK
    buffers = [torch.zeros(chunk, _aligned(t.size(1)), dtype=dtype, device=first.device) for t in tensors]
    for begin in range(0, first.size(0), chunk):
        at = slice(begin, min(begin + chunk, first.size(0)))
        for buffer, t in zip(buffers, tensors, strict=True):
            buffer[: at.stop - begin, : t.size(1)] = t[at]
            buffer[at.stop - begin :] = 0
        yield at, buffers


@float32_products()
def forward(
    x: torch.Tensor, fn: torch.Tensor, norm_eps: float, eps_outside: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (T, M), norms (T, 2)) for x (T, K) and fn (M, K); norms are r and k, see `norms_of`."""
    (m, size), dtype = fn.shape, computing(x.dtype)
    fn = _projection(x, fn)
    mixes, norms = x.new_empty(x.size(0), m, dtype=dtype), x.new_empty(x.size(0), 2, dtype=dtype)
    for at, (rows,) in _chunks(x, dtype=dtype):
        count = at.stop - at.start
        made = norms_of(rows.square().sum(-1) / size, size, norm_eps, eps_outside)
        mixes[at] = (made[:, :1] * (rows @ fn.mT))[:count, :m]
        norms[at] = made[:count]
    return mixes, norms


def norms_of(q: torch.Tensor, size: int, norm_eps: float, eps_outside: bool) -> torch.Tensor:
    """(T, 2): r, which makes mixes of products, and k, with which the gradient of r is k <dmixes, mixes> x.

    k is -r^2 / size, or for an eps outside the root -r / (size sqrt(q)), 0 where q is: mixes is linear there.
    """
    if not eps_outside:
        r = 1 / (q + norm_eps).sqrt()
        return torch.stack([r, -r * r / size], -1)
    root = q.sqrt()
    r = 1 / (root + norm_eps)
    return torch.stack([r, torch.where(root > 0, -r / root / size, 0.0)], -1)


@float32_products()
def backward(
    dmixes: torch.Tensor, x: torch.Tensor, fn: torch.Tensor, mixes: torch.Tensor, norms: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx (T, K) in the dtype of x, dfn (M, K) in the computing dtype) of `forward`'s results."""
    m, size = fn.shape
    fn = _projection(x, fn)
    dx, dfn = torch.empty_like(x, memory_format=torch.contiguous_format), torch.zeros_like(fn)
    for at, (rows, upstream, found, norm) in _chunks(x, dmixes, mixes, norms, dtype=fn.dtype):
        g = norm[:, :1] * upstream
        along = norm[:, 1:2] * (upstream * found).sum(-1, keepdim=True)
        dx[at] = (g @ fn + along * rows)[: at.stop - at.start, :size]
        dfn.addmm_(g.mT, rows)
    return dx, dfn[:m, :size].contiguous()
