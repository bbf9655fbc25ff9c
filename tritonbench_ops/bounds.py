"""Errors in units of what each entry is allowed, some rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

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


def largest_of_tokens(
    given: Sequence[torch.Tensor],
    results: Mapping[str, torch.Tensor | None],
    exact: Callable[..., Mapping[str, torch.Tensor]],
    error_budget: Callable[..., Mapping[str, torch.Tensor]],
    entries: int,
) -> float:
    """The largest share of all entries of results, None for one that is not there, on the device of `given`.

    Args:
        given: what `exact` and `error_budget` take, each with a row a token.
        entries: those of the widest tensor that are computed in float64 at a time.
    """
    given, shares = [t.detach() for t in given], [0.0]
    found = {name: t for name, t in results.items() if t is not None}
    widest = max(t[0].numel() for t in given)
    for at in pieces(len(given[0]), entries, widest):
        piece = [t[None, at] for t in given]
        truth, budgets = exact(*piece), error_budget(*piece)
        shares += [largest_share(t[None, at], truth[name], budgets[name]) for name, t in found.items()]
    return max(shares)
