"""Errors in units of what each entry is allowed, some rows at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch


def pieces(rows: int, entries: int, of_a_row: int) -> Iterator[slice]:
    """Slices of so many rows that one has about this many entries."""
    step = max(1, entries // of_a_row)
    yield from (slice(first, min(first + step, rows)) for first in range(0, rows, step))


def largest_share(actual: torch.Tensor, exact: torch.Tensor, allowed: torch.Tensor) -> float:
    """The largest error in units of what is allowed entry by entry; NaN and another shape count as any."""
    if not actual.shape == exact.shape == allowed.shape:
        return math.inf
    exact, allowed = exact.to(actual.device), allowed.to(actual.device)
    return largest_part((actual.detach().double() - exact).abs(), allowed)


def largest_part(wrong: torch.Tensor, allowed: torch.Tensor) -> float:
    """The same of absolute errors; a NaN among what is allowed allows none."""
    parts = torch.where(wrong == 0, 0.0, wrong / allowed)
    return float(parts.nan_to_num(nan=math.inf, posinf=math.inf).max())
