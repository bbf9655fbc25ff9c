"""Running a candidate in guarded memory, repeatedly and in pieces, which must not change its bits."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ci.gate.gate import Candidate

BAND = 1 << 16
"""Bytes of known content on either side of a block of memory, as long as a tile of the largest matrices."""
POISON = 0xFF
"""The byte that fills unwritten memory: NaN in each floating type, -1 in integers."""
UNWRITTEN = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
"""Functions of torch that allocate without writing."""
RERUNS = 100
"""Reruns; a race that shows in one run of twenty is missed once in 170."""
RERUN_SECONDS = 0.25
"""Seconds of reruns; at least two are made."""
FEW = 7
"""The batch that is also run with elements apart, for which kernels are compiled anew."""
PIECES = (1, 2, 7, 33, 63)
"""Sizes of the first pieces that a batch is split into."""
Inputs = Sequence[torch.Tensor]


def bits(t: torch.Tensor) -> torch.Tensor:
    """A tensor's bits as integers: NaN and the sign of zero compare too."""
    return t.contiguous().view({2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have one dtype and the same bits."""
    return a.dtype == b.dtype and torch.equal(bits(a), bits(b))


def copies(batch: int, judged: int) -> torch.Tensor:
    """The number of the tested element at each position of a batch, which begins with all in order.

    Each repetition is rotated by the number of ones in its binary number.  It so differs from the repetition
    a power of two before it, and an index that wraps finds another element.
    """
    turns = torch.tensor([k.bit_count() for k in range(-(-batch // judged))])
    return (torch.arange(batch) + turns.repeat_interleave(judged)[:batch]) % judged


def filled(t: torch.Tensor, batch: int) -> torch.Tensor:
    """The tested elements in the order of `copies`, so that every position has a truth."""
    return t[copies(batch, len(t)).to(t.device)].contiguous()


class Guarded(TorchFunctionMode):
    """In this block new memory holds NaN and lies between two bands of NaN.

    An entry that is never written, or a read beyond an end, gives NaN in the result; a write beyond an end
    changes a band.
    """

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[torch.Tensor] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        # a compiler's tensors without memory have a class of their own, or the device "meta"
        if getattr(func, "__name__", "") in UNWRITTEN and type(made) is torch.Tensor and not made.is_meta:
            return self.placed(made)
        return made

    def placed(self, like: torch.Tensor) -> torch.Tensor:
        """Unwritten guarded memory with the shape, strides, dtype and device of a tensor."""
        size = like.untyped_storage().nbytes()
        block = torch.full((size + 2 * BAND,), POISON, dtype=torch.uint8, device=like.device)
        self.blocks.append(block)
        return block[BAND : BAND + size].view(like.dtype).as_strided(like.size(), like.stride())

    def copied(self, t: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor in guarded memory."""
        return self.placed(t).copy_(t) if t.untyped_storage().nbytes() == t.nbytes else self.copied(t.clone())

    @property
    def intact(self) -> bool:
        """Whether nothing was written into a band."""
        return all(
            bool((band == POISON).all()) for block in self.blocks for band in (block[:BAND], block[-BAND:])
        )


def is_of_the_kind(result: torch.Tensor, batch: int, shape: Sequence[int], dtype: torch.dtype) -> bool:
    """Whether a result has this dtype, elements of `shape` for the whole batch, and strides with contiguous
    elements that do not overlap.
    """
    element = math.prod(shape)
    return (
        result.dtype == dtype
        and result.shape == (batch, *shape)
        and all(e.is_contiguous() for e in result[:1])
        and (batch <= 1 or result.stride(0) >= element)
    )


def in_guarded_memory(candidate: Candidate, inputs: Inputs) -> tuple[Any, dict[str, bool]]:
    """A candidate's result for guarded inputs and allocations; whether it wrote only inside of these, and
    left the inputs unchanged.

    A call with other numbers comes first, so that arguments which the candidate keeps show in the tested
    call.
    """
    if inputs[0].is_cuda:
        # compiles, so that the guard does not see a compiler's memory
        candidate.run(*map(others, inputs))
    else:
        guarded(candidate, map(others, inputs))
    result, memory, given = guarded(candidate, inputs)
    unchanged = all(same(a, b) for a, b in zip(given, inputs, strict=True))
    return result, {"inside": memory.intact, "inputs": unchanged}


def guarded(candidate: Candidate, inputs: Iterable[torch.Tensor]) -> tuple[Any, Guarded, list[torch.Tensor]]:
    """One run: its result, the memory around everything, and the inputs in it."""
    memory = Guarded()
    given = [memory.copied(t) for t in inputs]
    with memory:
        result = candidate.run(*given)
    return result, memory, given


def runs_alike(candidate: Candidate, inputs: Inputs, result: torch.Tensor) -> bool:
    """Equal bits from run after run: directly after one another, after a launch on less data, and beside
    other work on the device."""
    less = [t[: math.ceil(len(t) / 3)] for t in inputs]
    until = time.monotonic() + RERUN_SECONDS
    beside = torch.cuda.Stream() if result.is_cuda else None
    work = torch.ones(1 << 10, 1 << 10, device=result.device) if result.is_cuda else None
    for k in range(RERUNS):
        # five runs a turn: with four, each run that fails once in eight could be the one on less data
        if k % 4 == 0:
            candidate.run(*less)
        if k % 4 == 2 and beside is not None:
            with torch.cuda.stream(beside):
                torch.mm(work, work)
        if not same(candidate.run(*inputs), result):
            return False
        if k and time.monotonic() > until:
            break
    return True


def cuts(batch: int, judged: int) -> list[int]:
    """The places where a batch is split: after PIECES, within the tested elements, and in the middle."""
    places = {0, *itertools.accumulate(PIECES), judged // 3, batch // 2, batch}
    return sorted(k for k in places if k <= batch)


def apart(t: torch.Tensor) -> torch.Tensor:
    """A copy of t in memory with NaN between its entries."""
    wide = t.new_full((*t.shape[:-1], 2 * t.size(-1)), math.nan)[..., ::2]
    return wide.copy_(t)


def rows_apart(t: torch.Tensor) -> torch.Tensor:
    """A copy of t with rows of NaN between its rows."""
    return t.new_full((*t.shape[:-1], t.size(-1) + 1), math.nan)[..., :-1].copy_(t)


def elements_apart(t: torch.Tensor) -> torch.Tensor:
    """A copy of t with elements of NaN between the elements of its batch."""
    return t.new_full((2 * len(t), *t.shape[1:]), math.nan)[::2].copy_(t)


def others(t: torch.Tensor) -> torch.Tensor:
    """Other numbers of the same kind, for a call that differs in nothing else."""
    return t.flip(-1)


def beside_nan(candidate: Candidate, inputs: Inputs, result: torch.Tensor) -> bool:
    """Whether an element that is not finite changes no bits of other elements."""
    place = len(result) // 2
    spoiled = inputs[0].clone()
    spoiled[place] = math.nan
    spoiled[place].view(-1)[-1] = math.inf
    with_nan = candidate.run(spoiled, *inputs[1:])
    return all(same(with_nan[k], result[k]) for k in (slice(0, place), slice(place + 1, None)))


def reproducible(candidate: Candidate, inputs: Inputs, result: torch.Tensor, judged: int) -> dict[str, bool]:
    """Equal bits from other runs, from any split of the batch, at any position in it, from strided inputs,
    and beside an element that is not finite."""
    batch = len(result)
    places = itertools.pairwise(cuts(batch, judged))
    pieces = [candidate.run(*(t[a:b] for t in inputs)) for a, b in places]
    layouts = (apart, rows_apart, elements_apart) if batch <= FEW else (apart, rows_apart)
    return {
        "again": runs_alike(candidate, inputs, result),
        "split": same(torch.cat(pieces), result),
        "position": same(result, result[:judged][copies(batch, judged).to(result.device)]),
        "strided": all(same(candidate.run(*map(of, inputs)), result) for of in layouts),
        "beside NaN": beside_nan(candidate, inputs, result),
    }
