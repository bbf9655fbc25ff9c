"""float8 e4m3 and the scales of groups from their definitions, in float64; bytes of results compared."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

GRID = torch.tensor(
    [m / 8 * 2.0**-6 for m in range(8)]
    + [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)],
    dtype=torch.float64,
)
"""Every value of e4m3 from 0 up, in the order of their codes; the last code is NaN."""


def nearest(q: torch.Tensor) -> torch.Tensor:
    """The e4m3 next to each entry, ties to the even code; beyond the largest it saturates."""
    above = torch.searchsorted(GRID, q.abs().contiguous()).clamp(1, len(GRID) - 1)
    low, high = GRID[above - 1], GRID[above]
    middle = (low + high) / 2
    is_up = (q.abs() > middle) | ((q.abs() == middle) & (above % 2 == 0))
    return torch.where(is_up, high, low).copysign(q)


def unit(q: torch.Tensor) -> torch.Tensor:
    """The distance of e4m3's values around an entry."""
    return 2.0 ** (torch.log2(q.abs().clamp(min=2.0**-6)).floor() - 3)


def scaled(u: torch.Tensor, group: int, is_power: bool, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales (..., C / G), before they are rounded, and u by groups."""
    parts = u.double().unflatten(-1, (-1, group))
    exact = parts.abs().amax(-1).clamp(min=floor) / 448
    if not is_power:
        return exact, parts
    powers = [2.0**k for k in range(-127, 128)]
    chosen = [next(p for p in powers if p >= value) for value in exact.flatten().tolist()]
    return torch.tensor(chosen, dtype=torch.float64).view(exact.shape), parts


assert len(GRID) == 127
assert GRID[-1] == 448
assert math.isclose(GRID[1], 2.0**-9)


def assert_same(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    for t, like in zip(found, expected, strict=True):
        assert (t.dtype, t.shape, t.stride()) == (like.dtype, like.shape, like.stride())
        assert torch.equal(bytes_of(t), bytes_of(like))


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    return t.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8)
