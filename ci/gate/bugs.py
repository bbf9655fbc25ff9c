"""A bug, and those that any kernel may have: in memory, between runs and at the last store."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import gate

Change = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Bug:
    """One wrong implementation, and where it shows."""

    name: str
    on: str
    """The workload."""
    run: gate.Run
    of: tuple[str, ...]
    """The results it is judged by."""
    hidden: str = ""
    """Why nothing can tell, of one that is no error after all."""


def later(run: gate.Run, of: str, change: Change) -> gate.Run:
    """One result changed on its way to memory."""

    def wrong(w, *inputs):
        found = run(w, *inputs)
        return found | {of: change(found[of])}

    return wrong


def edited(edit: Callable[[torch.Tensor], None]) -> Change:
    """A copy, edited."""

    def change(t: torch.Tensor) -> torch.Tensor:
        t = t.clone(memory_format=torch.contiguous_format)
        edit(t)
        return t

    return change


def at(index, value: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """What stands at an index replaced by a function of the whole."""
    return edited(lambda t: t.__setitem__(index, value(t.clone())))


def stored(*where: object) -> Change:
    """Written into memory of its own, but not where this index is."""

    def change(t: torch.Tensor) -> torch.Tensor:
        out = torch.empty(t.shape, dtype=t.dtype, device=t.device)
        kept = torch.ones(t.shape, dtype=torch.bool, device=t.device)
        kept[where] = False
        return out.masked_scatter_(kept, t[kept])

    return change


def spilled(offset: int) -> Change:
    """One entry more than there is room for, behind the end or before the start."""

    def change(t: torch.Tensor) -> torch.Tensor:
        out = torch.empty(t.shape, dtype=t.dtype, device=t.device).copy_(t)
        place = out.storage_offset() + (out.numel() + offset - 1 if offset > 0 else offset)
        # on a GPU it would go where nobody looks; here only guarded memory has the room
        if 0 <= place < out.untyped_storage().nbytes() // out.element_size():
            out.as_strided((1,), (1,), place).fill_(1.0)
        return out

    return change


def column_major(t: torch.Tensor) -> torch.Tensor:
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def wider(t: torch.Tensor) -> torch.Tensor:
    return t.double() if t.dtype == torch.float32 else t.float()


def bumped(t: torch.Tensor) -> torch.Tensor:
    """Larger by one in the last place."""
    return torch.nextafter(t, torch.full_like(t, torch.inf))


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


def overwriting(run: gate.Run, which: int, change: Callable[[torch.Tensor], object]) -> gate.Run:
    """An input changed in place, after it was used."""

    def wrong(w, *inputs):
        found = run(w, *inputs)
        change(inputs[which])
        return found

    return wrong


def as_if_contiguous(run: gate.Run, where: Callable[[torch.Tensor], bool]) -> gate.Run:
    """The first input read by its address and sizes, whatever its strides, where it is of a kind."""

    def wrong(w, t, *inputs):
        # a view as the gate makes them holds more memory than it shows
        if not t.is_contiguous() and where(t):
            t = t.as_strided(t.shape, torch.empty(t.shape, device="meta").stride())
        return run(w, t, *inputs)

    return wrong


def entries_apart(t: torch.Tensor) -> bool:
    return t.stride(-1) > 1


def rows_apart(t: torch.Tensor) -> bool:
    return t.stride(-1) == 1 and not t[0].is_contiguous()


def elements_apart(t: torch.Tensor) -> bool:
    return len(t) > 1 and t[0].is_contiguous()


def of_the_first_call(run: gate.Run) -> gate.Run:
    """The first input that came in a shape taken for all that come later."""
    first: dict[torch.Size, torch.Tensor] = {}
    return lambda w, t, *inputs: run(w, first.setdefault(t.shape, t), *inputs)


def spread_nan(run: gate.Run, of: str) -> gate.Run:
    """An element takes zero times what its neighbour has."""

    def wrong(w, *inputs):
        found = run(w, *inputs)
        sums = inputs[0].double().flatten(1).sum(-1)
        neighbour = (0 * sums).roll(1).view(-1, *[1] * (found[of].dim() - 1))
        return found | {of: found[of] + neighbour.to(found[of].dtype)}

    return wrong


def anywhere(run: gate.Run, on: str, of: str, upstream: int) -> list[Bug]:
    """The bugs of every operator, planted into a right implementation; `upstream` numbers the gradient."""

    def at_store(name: str, change: Change) -> Bug:
        return Bug(name, on, later(run, of, change), (of,))

    return [
        Bug(
            "first input shifted in place",
            on,
            overwriting(run, 0, lambda x: x.sub_(x.amax(-1, keepdim=True))),
            (of,),
        ),
        Bug(
            "upstream gradient scaled in place", on, overwriting(run, upstream, lambda g: g.mul_(2.0)), (of,)
        ),
        Bug("strides of the first input ignored", on, as_if_contiguous(run, entries_apart), (of,)),
        Bug("a neighbour that is not finite shows", on, spread_nan(run, of), (of,)),
        at_store("last element never written", stored(-1)),
        at_store("a corner of every element never written", stored(..., -1)),
        at_store("one entry behind the end", spilled(1)),
        at_store("a whole line behind the end", spilled(64)),
        at_store("one entry before the start", spilled(-1)),
        at_store("result of a wider type", wider),
        at_store("column-major strides", column_major),
        at_store("other bits in one run of eight", in_one_run_of(8)),
        at_store("the last launch shows", left_by_the_last_launch()),
        at_store("other bits where the batch is odd", lambda t: bumped(t) if len(t) % 2 else t),
        at_store("other bits behind the first element", edited(lambda t: t[1:].copy_(bumped(t[1:])))),
        at_store("one batch position takes its neighbour", at(slice(1, 2), lambda t: t[:1])),
        at_store(
            "every fourth lane of its neighbour",
            at((..., slice(1, None, 4)), lambda t: t.roll(1, -1)[..., 1::4]),
        ),
        at_store(
            "one lane of the last element off by 2^-6",
            at((-1, ..., -1), lambda t: t[-1, ..., -1] * (1 + 2.0**-6)),
        ),
        at_store(
            "a stale tile: the first line of the element before", at((slice(1, None), 0), lambda t: t[:-1, 0])
        ),
        at_store(
            "rounded through 8 bits at the store",
            lambda t: (
                t.bfloat16().to(t.dtype)
                if t.dtype != torch.bfloat16
                else t.half().to(torch.float8_e4m3fn).to(t.dtype)
            ),
        ),
        Bug("rows of the first input taken to be adjacent", on, as_if_contiguous(run, rows_apart), (of,)),
        Bug("the first input of the first call kept", on, of_the_first_call(run), (of,)),
    ]
