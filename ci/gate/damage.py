"""Faults in storing a right result, for any operator."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

Change = Callable[[torch.Tensor], torch.Tensor]


def edited(edit: Callable[[torch.Tensor], None]) -> Change:
    """A copy, edited."""

    def change(t: torch.Tensor) -> torch.Tensor:
        t = t.clone(memory_format=torch.contiguous_format)
        edit(t)
        return t

    return change


def largest_scaled(t: torch.Tensor) -> None:
    matrix = t[-1].view(-1)
    matrix[matrix.abs().argmax()] *= 1 + 2.0**-6


def stale(t: torch.Tensor) -> torch.Tensor:
    return t.roll(1, 0)


DAMAGES: dict[str, Change] = {
    "last matrix dropped": edited(lambda t: t[-1].zero_()),
    "tail of the batch dropped": edited(lambda t: t[-(len(t) % 32 or 32) :].zero_()),
    "stale output": stale,
    "one element scaled by 1 + 2^-6": edited(largest_scaled),
}


def at(index, value: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """The entries at an index replaced by a function of the whole tensor."""
    return edited(lambda t: t.__setitem__(index, value(t.clone())))


def cleared(*where: object) -> Change:
    """0 at an index; what is not finite becomes NaN."""
    return at(where, lambda t: 0 * t[where])


def stored(*where: object) -> Change:
    """The result in new memory, except where this index is."""

    def change(t: torch.Tensor) -> torch.Tensor:
        out = torch.empty(t.shape, dtype=t.dtype, device=t.device)
        kept = torch.ones(t.shape, dtype=torch.bool, device=t.device)
        kept[where] = False
        return out.masked_scatter_(kept, t[kept])

    return change


def spilled(offset: int) -> Change:
    """Store one entry too many, after the end or before the start."""

    def change(t: torch.Tensor) -> torch.Tensor:
        out = torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)
        place = out.storage_offset() + (out.numel() + offset - 1 if offset > 0 else offset)
        # only guarded memory has room for it
        if 0 <= place < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), place).fill_(1.0)
        return out

    return change


def wider(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.dtype == torch.float32 else t.float()


def bumped(t: torch.Tensor) -> torch.Tensor:
    """Larger by one in the last place."""
    return torch.nextafter(t, torch.full_like(t, torch.inf))


def neighbour_leaks(t: torch.Tensor) -> torch.Tensor:
    """A little of the element before."""
    return t + (2.0**-10 if t.dtype == torch.float32 else 2.0**-7) * t.roll(1, 0)


def in_one_run_of(count: int) -> Change:
    calls = itertools.count(1)
    return lambda t: bumped(t) if next(calls) % count == 0 else t


def left_by_the_last_launch() -> Change:
    """The size of the last launch's batch, kept in scratch, selects the order of sums."""
    sizes = [0]

    def change(t: torch.Tensor) -> torch.Tensor:
        before, sizes[0] = sizes[0], len(t)
        return bumped(t) if before not in (0, len(t)) else t

    return change


def as_if_rows_had(length: int) -> Change:
    """Rows read with a wrong row length."""

    def change(t: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(t.numel() // t.size(-1)) * length
        places = rows[:, None] + torch.arange(t.size(-1))
        return t.reshape(-1)[places % t.numel()].view(t.shape)

    return change


def clamped_to_the_last(t: torch.Tensor) -> torch.Tensor:
    """The last element replaced by the one before it."""
    return t[torch.arange(len(t)).clamp(max=max(len(t) - 2, 0))]
