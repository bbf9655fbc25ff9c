"""Layouts of an operator's arguments, whatever their dimensions mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from operator_table import Row

Change = Callable[[torch.Tensor], torch.Tensor]


def expanded(t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """All tokens replaced by the first one."""
    for d in dims:
        t = t.narrow(d, 0, 1).expand(t.shape)
    return t


def swapped(t: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    """The dimensions of the tokens in the other order in memory."""
    a, b = dims[0], dims[-1]
    return t.transpose(a, b).contiguous().transpose(a, b)


def of_all(change: Change) -> Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]:
    return lambda t, dims: change(t)


LAYOUTS: dict[str, Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor]] = {
    "tokens swapped": lambda t, dims: swapped(t, dims) if dims else t,
    "transposed": of_all(lambda t: t.mT.contiguous().mT if t.dim() > 1 else t),
    "last dimension first": of_all(lambda t: t.movedim(-1, 0).contiguous().movedim(0, -1)),
    "first dimension last": of_all(lambda t: t.movedim(0, -1).contiguous().movedim(-1, 0)),
    "every other entry": of_all(lambda t: t.repeat_interleave(2, -1)[..., ::2]),
    "every other of the first": of_all(lambda t: t.repeat_interleave(2, 0)[::2]),
    "a slice": of_all(lambda t: torch.cat([t, t], -1)[..., t.size(-1) :]),
    "an odd offset": of_all(lambda t: torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)),
    "negated lazily": of_all(lambda t: torch._neg_view(-t)),
    "expanded": expanded,
}
EVERY = "contiguous", *LAYOUTS, "no tokens"


def laid_out(row: Row, layout: str, device: str = "cpu", **options: Any) -> tuple[list[torch.Tensor], Change]:
    """(arguments, what does the same to upstream gradients, whose first dimensions are the tokens')."""
    drawn = row.arguments(2, 0 if layout == "no tokens" else 5, **options)
    given = {name: t.to(device) for name, t in drawn.items()}
    if layout not in LAYOUTS:
        return [*given.values()], lambda t: t
    dims, change = row.token_dims(), LAYOUTS[layout]
    return [change(t, dims[name]) for name, t in given.items()], lambda t: change(t, (0, 1))
