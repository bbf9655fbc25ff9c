"""Observers of updates of the residual streams; mhc/recompute.py is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Update(NamedTuple):
    """The tensors of a call of `hc_post`, or of the part of `hc_boundary` that computes the same."""

    f: torch.Tensor
    x: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor | None
    bias: torch.Tensor | None = None


Observer = Callable[[torch.Tensor, Update, str, str], None]
_observers: list[Observer] = []


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Call the observer after each eager update of streams, until the end of the block.

    It gets the new streams, what they were made of, comb_order and the implementation.
    """
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)


def updated(streams: torch.Tensor, update: Update, comb_order: str, implementation: str) -> torch.Tensor:
    """Return the streams, after calling the observers with what the streams were made of."""
    # a compiler would have to trace what observers do
    if _observers and not torch.compiler.is_compiling():
        # another thread may remove its observer meanwhile
        for observer in tuple(_observers):
            observer(streams, update, comb_order, implementation)
    return streams
