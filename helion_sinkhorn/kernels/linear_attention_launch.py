"""From tensors to the walks of recurrent linear attention: o, and the gradients of everything that made it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from helion_sinkhorn.kernels import Choice, build
from helion_sinkhorn.kernels.dispatch import run

KERNEL = "linear_attention_walk"
SIDE = slice(None)


@dataclasses.dataclass(frozen=True)
class Gates:
    """The log decays that are there, tokens of all sequences on one axis."""

    g: torch.Tensor | None
    g_gamma: torch.Tensor | None
    gk: torch.Tensor | None
    gv: torch.Tensor | None

    def swapped(self) -> Gates:
        """Those of the transposed state."""
        return Gates(self.g, self.g_gamma, self.gv, self.gk)


def largest_divisor(n: int, most: int) -> int:
    """The largest power of two up to `most` that divides n."""
    return min(most, n & -n)
