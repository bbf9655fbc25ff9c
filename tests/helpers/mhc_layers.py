"""Small models of sublayers between streams."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_expand, nn


class Layers(torch.nn.Module):
    """Hidden states to new streams in V4's form, or to their collapse by a head or in V4.1's."""

    def __init__(
        self,
        count: int,
        c: int,
        n: int,
        *,
        delayed: bool = False,
        head: bool = False,
        dtype: torch.dtype = torch.float32,
        **options: Any,
    ) -> None:
        super().__init__()
        self.n, self.delayed = n, delayed
        self.layers = torch.nn.ModuleList(
            nn.HyperSublayer(
                torch.nn.Sequential(torch.nn.Linear(c, c, dtype=dtype), torch.nn.Tanh()), c, n,
                delayed_pre=delayed, **options,
            )
            for _ in range(count)
        )  # fmt: skip
        self.head = nn.HyperHead(c, n) if head and not delayed else None

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        streams = hc_expand(h, self.n)
        for layer in self.layers:
            streams = layer(streams)
        if self.delayed:
            return self.layers[-1].collapse(streams)
        return streams if self.head is None else self.head(streams)


def checkpointed(modules: Iterable[torch.nn.Module]) -> None:
    """Let the forwards of these modules run again in the backward."""
    for module in modules:
        module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)
