"""Evidence, a row for each operator: how its calls are made, run and tested.

The tuner, the gate and the tests run an operator's kernels in the same way, on the same inputs, and compare
them with the same truths.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import ModuleType
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.runtime.kernel import Choice, Kernel

Tensors = tuple[torch.Tensor, ...]
Results = dict[str, torch.Tensor]
"""What an implementation computes, by the names of the truths."""
Choices = Mapping[str, Choice]
"""Configs by kernel; kernels that are not named take their stored configs."""
Calls = Callable[[Any], Iterator[tuple[str, Any]]]
"""workload -> (kernel, its call), one for each kernel."""


EVERY_STEP = sys.maxsize
"""More entries times iterations than any workload has: all of it is tested."""


@dataclass(frozen=True)
class Trial:
    """How a kernel is run by itself, by the tuner on a GPU and by the offline compiler on nothing."""

    operands: Callable[[Any, int, str], Tensors]
    """(call, batch, device) -> what the kernel reads; on the device "meta" only their layouts count."""
    run: Callable[..., torch.Tensor | Tensors]
    """(call, choice, *operands, **options) -> what it writes, through the launcher of the operator."""
    error: Callable[[Any, Choice, str], float]
    """(call, choice, device) -> the largest error in units of its budget: above 1 the choice is wrong."""
    judged_apart: bool = False
    """Whether `error` launches another program than `run`, which the tuner has compiled beside it."""


class Alone(NamedTuple):
    """How a kernel is run by itself where `run` launches other kernels too; the fields are those of Trial."""

    operands: Callable[[Any, int, str], Tensors]
    run: Callable[..., torch.Tensor | Tensors]


def nothing(of: Any) -> Iterator[Any]:
    return iter(())


def all_inputs(workload: Any, steps: int, **drawn: Any) -> Tensors:
    """The inputs of a workload whose results are all tested."""
    return workload.make_inputs(**drawn)


def tokens_of(workload: Any, elements: int) -> int:
    """Tokens, or matrices."""
    return elements * getattr(workload, "tokens", 1)


@dataclass(frozen=True, eq=False)
class Evidence:
    """How an operator is tested; a Binary is one of machine.binary, which may not be imported here."""

    name: str
    workload: type[Any]
    """The type of its workloads."""
    kernels: Mapping[str, Kernel]
    computes: Mapping[str, tuple[str, ...]]
    """For each kernel, also of `others`, or each of the `parts`, the results that show what it computed."""
    kernel_calls: Calls
    """The kernels that a call of this workload launches."""
    of_call: Callable[[str, Any, int], Any]
    """(kernel, its call, tokens or matrices) -> a workload that launches the kernel for this call."""
    results: Callable[[Any], Collection[str]]
    """The names of a workload's results."""
    inputs: Callable[..., Tensors]
    """(workload, steps, **drawn): the tested part of its inputs, elements first, all of them for EVERY_STEP;
    `drawn` as `make_inputs` has it, so that they are made on another device too."""
    truths: Callable[..., dict[str, Truth]]
    """(workload, *inputs): by the name of the result."""
    run: Callable[..., Results]
    """(workload, choices, of, *inputs): the results named in `of`, by launches with these choices, or by the
    path of a CPU if choices is None.  It launches no kernel that these results do not need, and an element
    may have another number of tokens than the workload says."""
    call_public: Callable[[Any, Callable[..., torch.Tensor]], None]
    """(workload, empty): call the public function, for its checks, on tensors of empty(*shape, dtype=...)."""
    _: KW_ONLY
    judged: int = 16
    """Tokens or matrices that the tuner tests a config by; a multiple of 16, as timed batches are."""
    same_bits: frozenset[str] = frozenset()
    """Results with the same bits for every config, since batches of other sizes may have other configs."""
    before: Calls = nothing
    """Kernels that a call launches to make what its workload begins with."""
    others: Calls = nothing
    """Kernels of other operators that make results of this one too."""
    optional: frozenset[str] = frozenset()
    """Results by options that a workload's call does not have: the gate tests them, the tuner does not."""
    parts: Callable[[Any], Iterator[tuple[str, str, Any]]] | None = None
    """workload -> (part, kernel, its call), where a call launches a kernel several times: `run` takes choices
    by the names of parts, and otherwise by kernel."""
    batch: Callable[[Any, int], int] = tokens_of
    """(workload, elements): the batch by which the configs of so many elements are looked up."""
    spare: Calls = nothing
    """Kernels that could compute a call, but that the public function does not choose for it."""
    public: Callable[..., Results] | None = None
    """(workload, of, *inputs): by the public function and autograd, where it does more than `run`."""
    by_public: Callable[[Any, bool], Collection[str]] | None = None
    """(workload, whether on a GPU): the results by which `public` is tested; None for all."""
    by_eager: Callable[[Any], Collection[str]] | None = None
    """The results of a workload that the path of a CPU has; None for all."""
    by_kernels: Callable[[Any], Collection[str]] | None = None
    """The results of a workload by which kernels are tested; None for all."""
    alone: Mapping[str, Alone] = field(default_factory=dict)
    """By kernel, its trial where that is not `run` on the operands of a workload; its error still is."""
    errors: Mapping[str, Callable[[Any, Choice, str], float]] = field(default_factory=dict)
    """(call, choice, device) -> the error of what a kernel itself computes, where its results hide it."""
    judged_apart: frozenset[str] = frozenset()
    """Kernels whose test launches another program than the timed trial."""
    fixed: tuple[str, ...] = ()
    """Fields of a workload that its trials do not take; their launches use the defaults."""
    problems: Callable[[Any], Iterator[str]] = nothing
    """Binary -> why it must not be launched, beside the reasons that hold for every kernel."""
    call: Callable[[Any, str], None] | None = None
    """(workload, device): make the launches of a call and its gradient; None where the trials do."""

    @functools.cached_property
    def trials(self) -> Mapping[str, Trial]:
        """How each kernel is run by itself, by name."""
        return {name: self._trial(name) for name in self.kernels}

    def _trial(self, kernel: str) -> Trial:
        apart, error = kernel in self.judged_apart, self.errors.get(kernel, self.error)
        if kernel in self.alone:
            return Trial(*self.alone[kernel], error, apart)

        def operands(call: Any, batch: int, device: str) -> Tensors:
            return self.inputs(self.of_call(kernel, call, batch), EVERY_STEP, device=device, there=True)

        @functools.lru_cache(maxsize=1)
        def judged(call: Any) -> Any:
            return self.of_call(kernel, call, self.judged)

        def run(call: Any, choice: Choice, *operands: torch.Tensor) -> Tensors:
            workload = judged(call)
            of = self._judged_by(kernel, workload)
            return tuple(self.run(workload, {kernel: choice}, of, *operands).values())

        return Trial(operands, run, error, apart)

    def _judged_by(self, kernel: str, workload: Any) -> list[str]:
        names = [name for name in self.results(workload) if name not in self.optional]
        return [name for name in self.computes[kernel] if name in names]

    def error(self, call: Any, choice: Choice, device: str) -> float:
        """The largest error of a kernel with this choice in units of its budget."""
        workload = self.of_call(choice.kernel, call, self.judged)
        of = self._judged_by(choice.kernel, workload)
        inputs = self.inputs(workload, EVERY_STEP)
        results = self.run(workload, {choice.kernel: choice}, of, *(t.to(device) for t in inputs))
        truths = _truths(self, workload)
        return max(truths[name].worst(t) for name, t in results.items())


@functools.lru_cache(maxsize=1)
def _truths(evidence: Evidence, workload: Any) -> dict[str, Truth]:
    """The truths of a workload, made once for all choices."""
    return evidence.truths(workload, *evidence.inputs(workload, EVERY_STEP))


def by_elements(
    compute: Callable[[slice], Results], count: int, of: Collection[str], sums: Collection[str]
) -> Results:
    """The results in `of`: those of tokens by one call for all elements, sums by a call for each element.

    Args:
        compute: the results of these elements, sums among them with an element in front.
        count: how many elements there are.
        sums: names of the results that are sums over the tokens of a call.
    """
    results = compute(slice(None)) if count == 1 or {*of} - {*sums} else {}
    if count > 1 and {*of} & {*sums}:
        each = [compute(slice(k, k + 1)) for k in range(count)]
        results |= {name: torch.cat([one[name] for one in each]) for name in sums if name in each[0]}
    return {name: results[name] for name in of}


def paths(choices: Choices | None, eager: ModuleType, launch: ModuleType) -> tuple[Callable[..., Any], ...]:
    """(forward, backward) of a module of launches with these choices, or of the CPU path without choices."""
    if choices is None:
        return eager.forward, eager.backward
    return (
        functools.partial(launch.forward, choice=choices.get(launch.FORWARD)),
        functools.partial(launch.backward, choice=choices.get(launch.BACKWARD)),
    )


def given(unused: str, **upstream: torch.Tensor) -> list[torch.Tensor | None]:
    """Upstream gradients as an operator gets them: None for results that nothing used."""
    return [None if name in unused.split() else t for name, t in upstream.items()]


def used(
    results: Iterable[torch.Tensor], upstream: Iterable[torch.Tensor | None]
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """The results that have an upstream gradient, and these gradients."""
    pairs = zip(results, upstream, strict=True)
    return tuple(zip(*((r, g) for r, g in pairs if g is not None), strict=True))
