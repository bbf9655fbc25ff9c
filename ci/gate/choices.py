"""The configs with which a kernel is tested, and the candidates made of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ci.gate.gate import Candidate
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.evidence import Calls, Choices, Evidence
from helion_sinkhorn.runtime.kernel import Choice, default_choice
from helion_sinkhorn.runtime.launch import choose, device_of

Run = Callable[..., torch.Tensor]
"""A function that makes one result from a call's inputs."""


def choices(name: str, call, batch: int, device: Device) -> list[tuple[Choice, bool]]:
    """(choice, whether this call gets it): a kernel's default, and the choices of any tuned batch on this
    stack.

    Entries of another Triton are left out if this one has its own, because no call launches them.
    """
    from helion_sinkhorn.lab.operators import KERNELS

    entries = (entry for folder in store.folders() for entry in store.read(folder, device.key, name))
    tuned = sorted({entry.batch for entry in entries if entry.key == call.key})
    served, *others = (choose(KERNELS[name], call, size, device) for size in (batch, *tuned))
    default = default_choice(KERNELS[name], call, device)
    by_config = {(c.config, c.variant): c for c in (default, served, *others)}
    return [(c, key == (served.config, served.variant)) for key, c in by_config.items()]


def candidate(of: str, choice: Choice, served: bool, run: Run) -> Candidate:
    """A kernel with a config, tested by one result."""
    config = {**dict(choice.config), **dict(choice.variant)}
    return Candidate(choice.kernel, of, config, choice.source, served, run)


def of_evidence(evidence: Evidence, workload: Any, *inputs: torch.Tensor) -> list[Candidate]:
    """The public function, if it does more than launch, and every kernel with each of its configs; on a CPU,
    the CPU path.
    """
    on_gpu = inputs[0].is_cuda
    names = evidence.results(workload)

    candidates = []
    if evidence.public is not None:
        public = names if evidence.by_public is None else evidence.by_public(workload, on_gpu)
        kernel, source, path = (evidence.name, "all served", served) if on_gpu else ("eager", "", by_public)
        candidates += [
            Candidate(kernel, name, {}, source, True, functools.partial(path, evidence, workload, name))
            for name in public
        ]
    if not on_gpu:
        return candidates or [
            Candidate(
                "eager", name, {}, "", True, functools.partial(one_result, evidence, workload, None, name)
            )
            for name in (evidence.by_eager or evidence.results)(workload)
        ]
    batch = evidence.batch(workload, len(inputs[0]))
    return candidates + of_kernels(evidence, workload, device_of(inputs[0]), batch)


def of_kernels(evidence: Evidence, workload: Any, device: Device, batch: int) -> list[Candidate]:
    """Each kernel with each of its configs, for every result that shows errors of the kernel."""
    names = (evidence.by_kernels or evidence.results)(workload)

    def whole(calls: Calls) -> Iterator[tuple[str, str, Any]]:
        return (("", kernel, call) for kernel, call in calls(workload))

    parts = whole(evidence.kernel_calls) if evidence.parts is None else evidence.parts(workload)
    taken = [*parts, *whole(evidence.others)]
    return [
        candidate(
            name, choice, is_served and (part, kernel, call) in taken and name not in evidence.optional,
            functools.partial(one_result, evidence, workload, {part or choice.kernel: choice}, name),
        )
        for part, kernel, call in (*taken, *whole(evidence.spare))
        for choice, is_served in choices(kernel, call, batch, device)
        for name in evidence.computes[part or kernel]
        if name in names
    ]  # fmt: skip


def one_result(
    evidence: Evidence, workload: Any, choices: Choices | None, name: str, *inputs: torch.Tensor
) -> torch.Tensor:
    """One result by launches with these choices; without choices, by the path of a CPU."""
    return evidence.run(workload, choices, (name,), *inputs)[name]


def by_public(evidence: Evidence, workload: Any, name: str, *inputs: torch.Tensor) -> torch.Tensor:
    """One result of the public function."""
    return evidence.public(workload, (name,), *inputs)[name]


def served(evidence: Evidence, workload: Any, name: str, *inputs: torch.Tensor) -> torch.Tensor:
    """One result as calls make it on a GPU; an emulated GPU runs launches instead of the public function."""
    if inputs[0].is_cuda:
        return by_public(evidence, workload, name, *inputs)
    return one_result(evidence, workload, {}, name, *inputs)
