"""The choices that Helion's reference mode does not distinguish."""

from __future__ import annotations

from collections.abc import Iterable

from helion_sinkhorn.runtime.kernel import Choice


def of_each_variant(choices: Iterable[Choice]) -> list[Choice]:
    """The first choice of each variant: whatever the config, one tile of reference mode is a whole range."""
    found: dict[object, Choice] = {}
    for choice in choices:
        found.setdefault(frozenset(choice.variant), choice)
    return list(found.values())
