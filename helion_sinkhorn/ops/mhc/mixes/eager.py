"""hc_mixes in PyTorch: what a CPU runs, and a GPU for float64.

In a BLAS the order of a sum depends on the number of rows and on their addresses.  So rows begin at 64-byte
boundaries, and the numbers of tokens in a chunk are numbers that were found to have one order of sums on this
machine.  Tokens that do not fit, mainly the last ones, are copied into a buffer that does.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Iterator, Sequence

import torch

from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import COMPUTING, ENTRIES, sum_last
from helion_sinkhorn.runtime.wanted import Some, room_for

CHUNK = 16
"""Tokens of a chunk if no other number of tokens gives the same bits."""
COUNTS = 4, 8, 16, 32, 64, 128, 256
"""Numbers of tokens that are tried; a chunk costs as much for one token as for all."""
ENOUGH = 64
"""Tokens with which a BLAS is near its best speed; with few columns it takes more."""
CHUNK_ON_GPU = 4096
ALIGNED = 16
"""Rows of a buffer are padded to a multiple of so many entries: 64 bytes of float32."""


@functools.cache
def _summed_alike(m: int, size: int, dtype: torch.dtype, threads: int) -> tuple[int, ...]:
    """CHUNK and the numbers of tokens that give its bits in both products with (m, size), tried once."""
    most = max(ENOUGH, min(COUNTS[-1], ENTRIES // size))
    random = torch.Generator().manual_seed(0)
    fn, x, g = (
        torch.randn(rows, _padded(columns), dtype=dtype, generator=random)[:, :columns]
        for rows, columns in ((m, size), (most, size), (most, m))
    )

    def made(count: int, rows: int) -> list[torch.Tensor]:
        both = (x, fn.mT), (g, fn)
        return [torch.cat([part @ factor for part in t[:rows].split(count)]) for t, factor in both]

    def has_its_bits(count: int) -> bool:
        return all(torch.equal(a, b[:count]) for a, b in zip(made(count, count), expected, strict=True))

    expected = made(CHUNK, most)
    return tuple(count for count in COUNTS if count <= most and has_its_bits(count))


def _is_aligned(t: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the rows of t need no copy."""
    plain = t.dtype == dtype and t.size(1) % ALIGNED == 0 and t.is_contiguous() and t.device.type == "cpu"
    return plain and t.data_ptr() % 64 == 0


def _padded(size: int, multiple: int = ALIGNED) -> int:
    return -(-size // multiple) * multiple


def _projection(x: torch.Tensor, fn: torch.Tensor) -> torch.Tensor:
    """fn in the computing dtype, with aligned rows, padded with zeros to a multiple of eight."""
    (m, k), dtype = fn.shape, COMPUTING[x.dtype]
    if m % 8 == 0 and _is_aligned(fn, dtype):
        return fn
    padded = torch.zeros(_padded(m, 8), _padded(k), dtype=dtype, device=fn.device)
    padded[:m, :k] = fn
    return padded


def _chunks(fn: torch.Tensor, *tensors: torch.Tensor) -> Iterator[tuple[slice, list[torch.Tensor]]]:
    """(tokens as a slice, their rows of each tensor, padded with zeros to a number of tokens that a chunk of
    products with fn of `_projection` may have).
    """
    tokens, dtype, device = tensors[0].size(0), fn.dtype, fn.device.type
    if device == "cpu":
        counts = _summed_alike(*fn.shape, dtype, torch.get_num_threads())
    else:
        counts = (CHUNK_ON_GPU if device == "cuda" else CHUNK,)
    for begin in range(0, tokens, counts[-1]):
        there = min(counts[-1], tokens - begin)
        count = counts[bisect.bisect_left(counts, there)]
        at, made = slice(begin, begin + there), []
        for t in tensors:
            if there == count and _is_aligned(t, dtype):
                made.append(t[at])
                continue
            made.append(t.new_zeros(count, _padded(t.size(1)), dtype=dtype))
            made[-1][:there, : t.size(1)] = t[at]
        yield at, made


def forward(
    x: torch.Tensor, fn: torch.Tensor, norm_eps: float, eps_outside: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(mixes (T, M), norms (T, 2)) for T tokens of K entries, x, and fn (M, K); norms are `norms_of`."""
    dtype, size = COMPUTING[x.dtype], fn.size(1)
    x = x.reshape(x.numel() // size, size)
    mixes, q = x.new_empty(x.size(0), fn.size(0), dtype=dtype), x.new_empty(x.size(0), dtype=dtype)
    prenorm(x, fn, mixes, q)
    norms = norms_of(q, size, norm_eps, eps_outside)
    return mixes.mul_(norms[:, :1]), norms


@float32_products()
def prenorm(x: torch.Tensor, fn: torch.Tensor, product: torch.Tensor, q: torch.Tensor) -> None:
    """Write products (T, M) and mean squares (T,) of x (T, K) and fn (M, K)."""
    m, size = fn.shape
    fn = _projection(x, fn)
    for at, (rows,) in _chunks(fn, x):
        there = at.stop - at.start
        product[at] = (rows @ fn.mT)[:there, :m]
        # on a CPU each row is summed by itself; only a single row of many columns is not
        summed = rows[: max(there, 2)] if x.device.type == "cpu" else rows
        q[at] = summed.square().sum(-1)[:there]
    q.div_(size)


def norms_of(q: torch.Tensor, size: int, norm_eps: float, eps_outside: bool) -> torch.Tensor:
    """(T, 2): r, the factor from products to mixes, and k: the norm adds k <dmixes, mixes> x to dx.

    k is -r^2 / size, or with eps outside the root -r / (size sqrt(q)); it is 0 where q is 0, since mixes is
    linear there.
    """
    if not eps_outside:
        r = 1 / (q + norm_eps).sqrt()
        return torch.stack([r, -r * r / size], -1)
    root = q.sqrt()
    r = 1 / (root + norm_eps)
    return torch.stack([r, torch.where(root > 0, -r / root / size, 0.0)], -1)


def backward(
    dmixes: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    mixes: torch.Tensor,
    norms: torch.Tensor,
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dx (T, K) in the dtype of x, dfn (M, K) in the computing dtype) of `forward`.

    Each that is not wanted is None.
    """
    along = norms[:, 1] * sum_last(dmixes * mixes)
    return gradients(norms[:, :1] * dmixes, along, x, fn, wanted)


def prenorm_backward(
    dproduct: torch.Tensor,
    dsquare: torch.Tensor,
    x: torch.Tensor,
    fn: torch.Tensor,
    wanted: Sequence[bool] = (True, True),
) -> tuple[Some, Some]:
    """(dx, dfn) of `prenorm`, as in `backward`."""
    return gradients(dproduct, dsquare * (2 / x.size(1)), x, fn, wanted)


@float32_products()
def gradients(
    scaled: torch.Tensor, along: torch.Tensor, x: torch.Tensor, fn: torch.Tensor, wanted: Sequence[bool]
) -> tuple[Some, Some]:
    """dx = scaled fn + along x, rounded once, and dfn = scaled' x, for scaled (T, M) and along (T,)."""
    m, size = fn.shape
    fn = _projection(x, fn)
    dx, dfn = room_for((x, fn), wanted)
    if dfn is not None:
        dfn.zero_()
    along = along.unsqueeze(1)
    given = (scaled,) if dfn is None else (scaled, x)
    for at, (g, *rows) in _chunks(fn, *given):
        there, g = at.stop - at.start, g[:, : fn.size(0)]
        if dx is not None:
            torch.addcmul((g @ fn)[:there, :size], along[at], x[at], out=dx[at])
        if dfn is not None:
            # zeros add nothing to a sum over tokens
            dfn.addmm_(g[:there].mT, rows[0][:there])
    return dx, None if dfn is None else dfn[:m, :size].contiguous()
