"""Errors in units of what each entry is allowed, some rows at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from helion_sinkhorn.lab.rounding import SIGMAS

Results = Mapping[str, torch.Tensor]
Tensors = Sequence[torch.Tensor]
PIECE_ENTRIES = 1 << 24
"""Entries of the widest tensor of an operator of tokens that are computed in float64 at a time."""


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
    given: Tensors,
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
    tensors = {name: t for name, t in results.items() if t is not None}
    widest = max(t[0].numel() for t in given)
    for at in pieces(len(given[0]), entries, widest):
        piece = [t[None, at] for t in given]
        truth, budgets = exact(*piece), error_budget(*piece)
        shares += [largest_share(t[None, at], truth[name], budgets[name]) for name, t in tensors.items()]
    return max(shares)


class Sums:
    """Results that are sums over tokens, each piece of which adds a part to their values and their errors."""

    def __init__(self) -> None:
        self.parts: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def add(self, name: str, *part: torch.Tensor) -> None:
        """A part's value, the sum of the squares of its terms, and the variance that the terms bring."""
        before = self.parts.get(name, (0.0, 0.0, 0.0))
        self.parts[name] = tuple(a + b for a, b in zip(before, part, strict=True))

    def shares(
        self, results: Results, of_additions: Callable[[str, torch.Tensor, torch.Tensor], torch.Tensor]
    ) -> Iterator[float]:
        """The largest share of each result that is there.

        Args:
            of_additions: (name, value, squares) -> the variance that the additions of all terms bring.
        """
        for name, (value, squares, variance) in self.parts.items():
            if name in results:
                variance = variance + of_additions(name, value, squares)
                yield largest_share(results[name], value, SIGMAS * variance.sqrt())
