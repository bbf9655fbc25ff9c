"""hc_mixes in PyTorch: what a CPU runs, and a GPU for float64.

Products are made in chunks of one shape, whose rows begin at 64-byte boundaries: a matrix product's rows are
then summed alike, while their order would follow the count of rows and their alignment.  What is not so, the
last tokens above all, is copied into a buffer that is.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import computing

CHUNKS = {2048: 32, 8192: 16}
"""Tokens of a chunk on a CPU, by the most columns: one alone costs as much as all."""
SMALLEST_CHUNK = 8
CHUNK_ON_GPU = 4096
ALIGNED = 16
"""Entries that rows of a buffer are padded to a multiple of: 64 bytes of float32."""


def _chunk(device: torch.device, size: int) -> int:
    if device.type == "cuda":
        return CHUNK_ON_GPU
    return next((chunk for most, chunk in CHUNKS.items() if size <= most), SMALLEST_CHUNK)


def _is_aligned(t: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether its rows need no copy."""
    plain = t.dtype == dtype and t.size(1) % ALIGNED == 0 and t.is_contiguous() and t.device.type == "cpu"
    return plain and t.data_ptr() % 64 == 0


def _padded(size: int, multiple: int = ALIGNED) -> int:
    return -(-size // multiple) * multiple


def _projection(x: torch.Tensor, fn: torch.Tensor) -> torch.Tensor:
    """fn in the computing dtype, with aligned rows, padded with zeros to a multiple of eight."""
    (m, k), dtype = fn.shape, computing(x.dtype)
    if m % 8 == 0 and _is_aligned(fn, dtype):
        return fn
    padded = torch.zeros(_padded(m, 8), _padded(k), dtype=dtype, device=fn.device)
    padded[:m, :k] = fn
    return padded


def _chunks(
    *tensors: torch.Tensor, dtype: torch.dtype, chunk: int
) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """(tokens as a slice, their rows of each tensor in one shape, zeros behind and below them)."""
    tokens = tensors[0].size(0)
    plain = [_is_aligned(t, dtype) for t in tensors]
    buffers: list[torch.Tensor | None] = [None] * len(tensors)
    for begin in range(0, tokens, chunk):
        count = min(chunk, tokens - begin)
        at, made = slice(begin, begin + count), []
        for k, t in enumerate(tensors):
            if plain[k] and count == chunk:
                made.append(t[at])
                continue
            if buffers[k] is None:
                buffers[k] = torch.zeros(chunk, _padded(t.size(1)), dtype=dtype, device=t.device)
            elif count < chunk:
                buffers[k][count:] = 0
            buffers[k][:count, : t.size(1)] = t[at]
            made.append(buffers[k])
        yield at, made


@float32_products()
def forward(
    x: torch.Tensor, fn: torch.Tensor, norm_eps: float, eps_outside: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (T, M), norms (T, 2)) for x (T, K) and fn (M, K); norms are r and k, see `norms_of`."""
    (m, size), dtype = fn.shape, computing(x.dtype)
    fn, chunk = _projection(x, fn), _chunk(x.device, size)
    mixes, q = x.new_empty(x.size(0), m, dtype=dtype), x.new_empty(x.size(0), dtype=dtype)
    for at, (rows,) in _chunks(x, dtype=dtype, chunk=chunk):
        count = at.stop - at.start
        mixes[at] = (rows @ fn.mT)[:count, :m]
        # on a CPU each row is summed alone, but for a single one of many columns
        summed = rows[: max(count, 2)] if x.device.type == "cpu" else rows
        q[at] = summed.square().sum(-1)[:count]
    norms = norms_of(q.div_(size), size, norm_eps, eps_outside)
    return mixes.mul_(norms[:, :1]), norms


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
    fn, chunk = _projection(x, fn), _chunk(x.device, size)
    dx, dfn = torch.empty_like(x, memory_format=torch.contiguous_format), torch.zeros_like(fn)
    scaled = fn.new_empty(chunk, _padded(m))
    g = scaled[:, : fn.size(0)]
    for at, (rows, upstream, found, norm) in _chunks(x, dmixes, mixes, norms, dtype=fn.dtype, chunk=chunk):
        torch.mul(norm[:, :1], upstream, out=scaled)
        along = norm[:, 1:2] * (upstream * found).sum(-1, keepdim=True)
        dx[at] = (g @ fn).addcmul_(along, rows)[: at.stop - at.start, :size]
        dfn.addmm_(g.mT, rows)
    return dx, dfn[:m, :size].contiguous()
