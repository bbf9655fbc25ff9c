"""Parts of projections that are made once and kept as long as fn lives and is unchanged."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from helion_sinkhorn.runtime.torch_op import PLAIN


class _Parts(NamedTuple):
    made: torch.Tensor
    version: int
    address: int


_kept: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""For each fn its `_Parts`, by (layout, number of parts)."""


def prepared(fn: torch.Tensor, layout: str, parts: int) -> torch.Tensor | None:
    """The parts that `prepare` made of fn, unless it has been changed since."""
    if not _kept or type(fn) not in PLAIN or fn.is_inference():
        return None
    kept = _kept.get(fn, {}).get((layout, parts))
    return kept.made if kept and kept[1:] == (fn._version, fn.data_ptr()) else None


def prepare(fn: torch.Tensor, layout: str, parts: int, make: Callable[[], torch.Tensor]) -> None:
    """Keep what `make` makes of fn, in the same memory as before, since a CUDA graph may read it."""
    own = _kept.setdefault(fn, {})
    made = make()
    before = own.get((layout, parts))
    if before and (before.made.shape, before.made.device) == (made.shape, made.device):
        made = before.made.copy_(made)
    own[layout, parts] = _Parts(made, fn._version, fn.data_ptr())
