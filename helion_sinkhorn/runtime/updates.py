"""Observers of updates of the residual streams; mhc/recompute.py is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Update(NamedTuple):
    """The arguments of a call of `hc_post`, or of the part of `hc_boundary` that computes the same."""

    f: torch.Tensor
    x: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor | None
    bias: torch.Tensor | None
    comb_order: str
    implementation: str


Observer = Callable[[torch.Tensor, Update], None]
_observers: list[Observer] = []


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call observer(streams, update) after each eager update of streams, until the end of the block."""
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def updated(streams: torch.Tensor, *update: object) -> torch.Tensor:
    """Return the streams, after calling the observers with what the streams were made of."""
    # a compiler would have to trace what observers do
    if _observers and not torch.compiler.is_compiling():
        # another thread may remove its observer meanwhile
        for observer in tuple(_observers):
            observer(streams, Update(*update))
    return streams
