"""What can happen to a right result on its way to memory, whatever the operator."""

from __future__ import annotations

from collections.abc import Callable

import torch


def scaled_element(t: torch.Tensor) -> torch.Tensor:
    t = t.clone(memory_format=torch.contiguous_format)
    matrix = t[-1]
    matrix.view(-1)[matrix.abs().argmax()] *= 1 + 2.0**-6
    return t


def scaled_row(t: torch.Tensor) -> torch.Tensor:
    t = t.clone(memory_format=torch.contiguous_format)
    t[len(t) // 2, -1] *= 1 + 2.0**-6
    return t


def last_dropped(t: torch.Tensor) -> torch.Tensor:
    t = t.clone(memory_format=torch.contiguous_format)
    t[-1] = 0
    return t


def tail_dropped(t: torch.Tensor) -> torch.Tensor:
    t = t.clone(memory_format=torch.contiguous_format)
    t[-(len(t) % 32 or 32) :] = 0
    return t


def stale(t: torch.Tensor) -> torch.Tensor:
    return t.roll(1, 0)


DAMAGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "last matrix dropped": last_dropped,
    "tail of the batch dropped": tail_dropped,
    "stale output": stale,
    "one element scaled by 1 + 2^-6": scaled_element,
    "one row scaled by 1 + 2^-6": scaled_row,
}
