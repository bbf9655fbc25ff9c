"""Kernels in Helion's reference mode, or compiled on a GPU, and choices that are one to the mode."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from helion_sinkhorn.runtime.kernel import Choice

each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
"""Bodies in reference mode, and where there is a GPU their programs."""


def of_each_variant(choices: Iterable[Choice]) -> list[Choice]:
    """The first choice of each variant: whatever the config, one tile of reference mode is a whole range."""
    by_variant: dict[object, Choice] = {}
    for choice in choices:
        by_variant.setdefault(frozenset(choice.variant), choice)
    return list(by_variant.values())
