"""Wrong implementations, which the gate must find: their type, and the ones of any operator."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ci.gate.columns import same
from ci.gate.damage import (
    DAMAGES,
    Change,
    at,
    bumped,
    in_one_run_of,
    left_by_the_last_launch,
    spilled,
    stale,
    stored,
    wider,
)
from helion_sinkhorn.lab.evidence import Results
from helion_sinkhorn.runtime.pieces import pieces

Run = Callable[..., Results]
"""(workload, *inputs) -> Results."""


@dataclass(frozen=True)
class Wrong:
    """An implementation that must be found.

    Statistics test it on every workload where it shows.  On the first of these it is also run like a kernel,
    repeatedly and in guarded memory.
    """

    name: str
    run: Run
    of: tuple[str, ...]
    """The results by which it is tested; all of a workload if none are named."""
    on: str | Callable[[Any], Any]
    """Where it shows: the name of one workload, on which it is only run like a kernel, or a predicate."""
    hidden: str = ""
    """Why nothing finds it, if it is no error after all."""

    def shows(self, workload: Any) -> bool:
        """Whether it is tested by statistics on a workload."""
        return not isinstance(self.on, str) and bool(self.on(workload))

    def first(self, workloads: Sequence[Any]) -> str:
        """The workload on which it is run like a kernel."""
        return self.on if isinstance(self.on, str) else next(w.name for w in workloads if self.on(w))


def by_eager(run: Run, results: Collection[str] | Callable[[Any], Collection[str]]) -> Run:
    """The path of a CPU, as the `run` of an operator's evidence has it, for these results of a workload."""
    return lambda w, *inputs: run(w, None, results(w) if callable(results) else results, *inputs)


def everywhere(workload: Any) -> bool:
    return True


def narrow(workload: Any) -> bool:
    return workload.dtype != torch.float32


def is_float32(workload: Any) -> bool:
    return not narrow(workload)


def where(shows: Callable[[Any], bool], run: Run) -> Run:
    """An implementation of some workloads; of others it has nothing."""
    return lambda w, *inputs: run(w, *inputs) if shows(w) else {}


def called(right: Run, **change: Any) -> Run:
    """Right for another call: fields of the workload, or functions of it that make them."""

    def wrong(w, *inputs):
        return right(replace(w, **{k: v(w) if callable(v) else v for k, v in change.items()}), *inputs)

    return wrong


def rounding(steps: Callable[..., Run], *fields: str) -> Run:
    """Steps that round to the dtype of a workload in these fields."""

    def wrong(w, *inputs):
        return steps(**dict.fromkeys(fields, lambda t: t.to(w.dtype).float()))(w, *inputs)

    return wrong


def of_the_piece_before(right: Run, *which: int) -> Run:
    """These inputs taken from the piece of the tokens before, of those that the CPU path takes at a time."""

    def wrong(w, *inputs):
        given = list(inputs)
        for k in which:
            t = given[k].flatten(0, 1).clone()
            for before, piece in itertools.pairwise(pieces(len(t), w.n * w.c)):
                t[piece] = t[before][: len(t[piece])]
            given[k] = t.view(inputs[k].shape)
        return right(w, *given)

    return wrong


def for_some(right: Run, run: Run, picked: Change) -> Run:
    """Wrong for the matrices at some positions of the batch: those of whose numbers `picked` says so."""

    def wrong(w, *inputs):
        at = picked(torch.arange(len(inputs[0]))).view(-1, 1, 1)
        good, bad = right(w, *inputs), run(w, *inputs)
        return {name: torch.where(at, bad[name], t) for name, t in good.items()}

    return wrong


def narrowed(right: Run, change: Callable[[Any, torch.Tensor], torch.Tensor]) -> Run:
    """Right in float32, and changed on the way to a narrow dtype."""

    def wrong(w, *inputs):
        results = right(replace(w, dtype=torch.float32), *(t.float() for t in inputs))
        return {name: change(w, t).to(w.dtype) for name, t in results.items()}

    return wrong


def given(right: Run, names: Sequence[str], **change: Change) -> Run:
    """Right for other inputs, by name."""

    def wrong(w, *inputs):
        named = zip(names, inputs, strict=False)
        return right(w, *(change.get(name, same)(t) for name, t in named), *inputs[len(names) :])

    return wrong


def changed(right: Run, **change: Change) -> Run:
    """Results damaged as they are stored, by name."""

    def wrong(w, *inputs):
        results = right(w, *inputs)
        return results | {of: function(results[of]) for of, function in change.items() if of in results}

    return wrong


def one(right: Run, of: str, change: Change) -> Run:
    """One result, of any name, changed in its dtype."""
    return changed(right, **{of: lambda t: change(t).to(t.dtype)})


def exchanged(right: Run, change: Callable[[Any, Results], Results]) -> Run:
    """Some results changed by a function of the right ones and the workload."""

    def wrong(w, *inputs):
        results = right(w, *inputs)
        return results | change(w, results)

    return wrong


def damaged(right: Run, damage: Change) -> Run:
    """Every result damaged."""
    return lambda w, *inputs: {of: damage(t) for of, t in right(w, *inputs).items()}


def overwriting(run: Run, which: int, change: Callable[[torch.Tensor], object]) -> Run:
    """An input changed in place, after it was used."""

    def wrong(w, *inputs):
        results = run(w, *inputs)
        change(inputs[which])
        return results

    return wrong


def as_if_contiguous(run: Run, where: Callable[[torch.Tensor], bool]) -> Run:
    """The first input of this kind read without its strides."""

    def wrong(w, t, *inputs):
        # the gate's views have more memory than they show
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


def of_the_first_call(run: Run) -> Run:
    """The first input of a shape, used again for all later ones."""
    first: dict[torch.Size, torch.Tensor] = {}
    return lambda w, t, *inputs: run(w, first.setdefault(t.shape, t), *inputs)


def spread_nan(run: Run, of: str) -> Run:
    """Zero times its neighbour is added to each element."""

    def wrong(w, *inputs):
        results = run(w, *inputs)
        sums = inputs[0].double().flatten(1).sum(-1)
        neighbour = (0 * sums).roll(1).view(-1, *[1] * (results[of].dim() - 1))
        return results | {of: results[of] + neighbour.to(results[of].dtype)}

    return wrong


def damages(right: Run, of: tuple[str, ...]) -> list[Wrong]:
    """Elements of a batch dropped, replaced or scaled."""

    def several(workload: Any) -> bool:
        return workload.batch > 1

    return [
        Wrong(name, damaged(right, damage), of, several if damage is stale else everywhere)
        for name, damage in DAMAGES.items()
    ]


def of_any(
    right: Run, on: str, of: str, upstream: int | None = None, only: Collection[str] = ()
) -> list[Wrong]:
    """Faults that any kernel may have: in memory, between runs and at the last store.

    Args:
        right: the implementation that is changed.
        on: a workload.
        of: the result that shows it.
        upstream: the place of its upstream gradient among the inputs, if it has one.
        only: keep the faults with one of these words in their names.
    """

    def at_store(name: str, change: Change) -> Wrong:
        return Wrong(name, changed(right, **{of: change}), (of,), on)

    faults = [
        Wrong(
            "first input shifted in place",
            overwriting(right, 0, lambda x: x.sub_(x.amax(-1, keepdim=True))),
            (of,),
            on,
        ),
        Wrong("strides of the first input ignored", as_if_contiguous(right, entries_apart), (of,), on),
        Wrong("a neighbour that is not finite shows", spread_nan(right, of), (of,), on),
        Wrong("the first input of the first call kept", of_the_first_call(right), (of,), on),
        at_store("last element never written", stored(-1)),
        at_store("a corner of every element never written", stored(..., -1)),
        at_store("one entry behind the end", spilled(1)),
        at_store("result of a wider type", wider),
        at_store("other bits in one run of eight", in_one_run_of(8)),
        at_store("the last launch shows", left_by_the_last_launch()),
        at_store("other bits where the batch is odd", lambda t: bumped(t) if len(t) % 2 else t),
        at_store(
            "one lane of the last element off by 2^-6",
            at((-1, ..., -1), lambda t: t[-1, ..., -1] * (1 + 2.0**-6)),
        ),
        at_store(
            "a stale tile: the first line of the element before", at((slice(1, None), 0), lambda t: t[:-1, 0])
        ),
    ]
    if upstream is not None:
        scaled = overwriting(right, upstream, lambda g: g.mul_(2.0))
        faults.insert(1, Wrong("upstream gradient scaled in place", scaled, (of,), on))
    return [w for w in faults if not only or any(word in w.name for word in only)]
