"""Views and copies in the layouts that kernels read."""

from __future__ import annotations

import functools
import math

import torch

VECTOR_BYTES = 16
"""The widest load of a thread, for tensors that start at a multiple of it."""
INT32_ELEMENTS = 1 << 31
"""Helion generates 64-bit indices for tensors of this many elements and more."""


def matrices_of(x: torch.Tensor) -> int:
    """The number of matrices in x (..., n, m)."""
    return x.numel() // (x.size(-2) * x.size(-1))


def matrices(x: torch.Tensor) -> torch.Tensor:
    """x as (B, n, m) with contiguous matrices at any distance; a copy if the layout has no such view.

    A tensor that does not start at a multiple of 16 bytes is copied too, because code without vector loads
    sums in another order.  So are matrices so far apart that 32-bit indices, which Helion chooses by the
    number of elements, do not reach the last.
    """
    n, m = x.shape[-2:]
    if x.data_ptr() % VECTOR_BYTES:
        x = x.clone(memory_format=torch.contiguous_format)
    if x.is_contiguous():
        return x.view(-1, n, m)
    x = x.reshape(-1, n, m)
    are_contiguous = (x.stride(2) == 1 or m == 1) and (x.stride(1) == m or n == 1)
    out_of_reach = (x.size(0) - 1) * x.stride(0) + n * m >= INT32_ELEMENTS > x.numel()
    if are_contiguous and not out_of_reach:
        return x.as_strided(x.shape, (x.stride(0) if x.size(0) > 1 else n * m, m, 1))
    return x.contiguous()


def pieces(x: torch.Tensor) -> torch.Tensor:
    """A (B, n, m) view as (B, n m / c, c) with c entries of 16 bytes, for kernels that load pieces."""
    size = x.size(1) * x.size(2)
    c = min(VECTOR_BYTES // x.element_size(), size)
    if c == x.size(2):
        return x
    return x.as_strided((x.size(0), size // c, c), (x.stride(0), c, 1))


def placed(x: torch.Tensor) -> torch.Tensor:
    """x, contiguous, from a 16-byte boundary on."""
    x = x.contiguous()
    # an axis of one keeps its old stride, which is a constant of the code
    if 1 in x.shape and x.stride() != (strides := strides_of(x.shape)):
        x = x.as_strided(x.shape, strides)
    return x.clone() if x.data_ptr() % VECTOR_BYTES else x


@functools.lru_cache(maxsize=4096)
def strides_of(shape: torch.Size) -> tuple[int, ...]:
    """The strides of a new contiguous tensor."""
    strides, size = [], 1
    for length in reversed(shape):
        strides.append(size)
        size *= max(1, length)
    return tuple(reversed(strides))


def flattened(x: torch.Tensor, kept: int) -> torch.Tensor:
    """x with all but its last `kept` axes as one, contiguous and starting at a multiple of 16 bytes."""
    if x.dim() == kept + 1:
        return placed(x)
    lead = x.dim() - kept
    # -1 does not work for tensors without entries
    return placed(x.reshape(math.prod(x.shape[:lead]), *x.shape[lead:]))


def flattened_streams(x: torch.Tensor) -> torch.Tensor:
    """(..., n, C) `flattened` to (T, n, C); streams of stride 0, which are one in memory, stay one."""
    if x.stride(-2) == 0 and x.size(-2) > 1:
        return flattened(x.select(-2, 0), 1).unsqueeze(1).expand(-1, x.size(-2), -1)
    return flattened(x, 2)


def unflattened(x: torch.Tensor, lead: torch.Size) -> torch.Tensor:
    """A new tensor (T, ...) as a result (*lead, ...).

    It is no view for autograd, which refuses in-place changes of views that an operator of several results
    returns.
    """
    return x if len(lead) == 1 else torch.ops.aten._unsafe_view.default(x, (*lead, *x.shape[1:]))


def parameter(x: torch.Tensor) -> torch.Tensor:
    """A parameter in float32, contiguous and starting at a multiple of 16 bytes."""
    return placed(x if x.dtype == torch.float32 else x.to(torch.float32))


def in_pieces(x: torch.Tensor, size: int) -> torch.Tensor:
    """Contiguous x (..., C) as (..., C / size, size)."""
    return x.view(*x.shape[:-1], x.size(-1) // size, size)
