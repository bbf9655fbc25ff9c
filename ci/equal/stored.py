"""Kernels by themselves: every stored config in its calls, and those that no result of a workload shows."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

from ci.equal.run import ONE_NUMBER, Made, beside, bits, digest, recorded
from ci.equal.table import classes_of
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.lab.operators import KERNELS, operator_for, operator_of
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall
from helion_sinkhorn.runtime.kernel import Choice, default_choice
from helion_sinkhorn.runtime.launch import choose

FEW = 2
"""Matrices or tokens of a call, and iterations without eps."""


def choices(kernel: str, device: Device) -> dict[Key, list[Choice]]:
    """The default and every stored config of each call that a device has one for."""
    by_call: dict[Key, list[Choice]] = {}
    for entry in (e for folder in store.folders() for e in store.read(folder, device.key, kernel)):
        if entry.key not in by_call:
            by_call[entry.key] = [default_choice(KERNELS[kernel], KERNELS[kernel].call.of(entry.key), device)]
        choice = Choice(kernel, entry.config, entry.variant, entry.source)
        if all((choice.config, choice.variant) != (c.config, c.variant) for c in by_call[entry.key]):
            by_call[entry.key].append(choice)
    return by_call


LAYOUTS = "rows", "together"
"""Variants that lay out other parts: of column sums over so many rows, and of fn for all streams."""


def named(key: Key, choice: Choice | None = None) -> str:
    """The calls of a key, as a workload is named; with a choice, also the layout of its parts."""
    layout = [(k, v) for k, v in choice.variant if k in LAYOUTS] if choice else []
    return "stored " + " ".join(f"{name}={value}" for name, value in (*key, *layout))


def in_ring(call: Any) -> Any:
    """A call without eps in few iterations: half of its sums are even, and after about ten P is 0."""
    if isinstance(call, SinkhornCall) and not call.deepseek:
        return dataclasses.replace(call, n_iters=FEW)
    return call


def drawn(trial: Any, call: Any, place: str) -> list[Any]:
    """The operands of a call, drawn on the CPU: a GPU draws other numbers."""
    return [t if t is None else t.to(place) for t in trial.operands(call, FEW, "cpu")]


def made(key: Key, choice: Choice, place: str) -> Iterator[Made]:
    """What a kernel writes in a call with one of its `choices`.

    Args:
        place: where the operands are to be.
    """
    evidence = operator_of(choice.kernel)
    trial, call = evidence.trials[choice.kernel], in_ring(KERNELS[choice.kernel].call.of(key))
    workload = evidence.of_call(choice.kernel, call, FEW)
    yield from of_choice(trial, workload, call, choice, named(key, choice), drawn(trial, call, place))


def alone(workload: Any, kernel: str, device: Device, place: str, used: bool) -> Iterator[Made]:
    """What a kernel writes in its call of a workload, with the config that this call gets and with others."""
    evidence = operator_for(workload)
    trial, call = evidence.trials[kernel], dict(evidence.kernel_calls(workload))[kernel]
    operands = drawn(trial, call, place)
    chosen = choose(KERNELS[kernel], call, FEW, device)
    configs = {chosen: None}
    if not used:
        others = default_choice(KERNELS[kernel], call, device), *beside(KERNELS[kernel], call, device)
        # operands of a trial that another variant reads are other numbers
        configs |= dict.fromkeys(c for c in others if dict(c.variant) == dict(chosen.variant))
    for choice in configs:
        yield from of_choice(trial, workload, call, choice, workload.name, operands)


def of_choice(
    trial: Any, workload: Any, call: Any, choice: Choice, name: str, operands: list[Any]
) -> Iterator[Made]:
    """The tensors that a launch returned, and the operands if it wrote over any of its copies of them.

    Beside operands a result that is one number is left out: it is not all that the kernel wrote.
    """
    own = [t if t is None else t.clone() for t in operands]
    with recorded() as launched:
        written = trial.run(call, choice, *own)
    labels = tuple(sorted({label for one in launched for label in classes_of(workload, one)}))
    digests = {}
    for k, t in enumerate(written if isinstance(written, tuple) else (written,)):
        if t is not None:
            digests[choice.kernel if k == 0 else f"{choice.kernel} {k + 1}"] = digest(t)
    before, after = ([bits(t) for t in tensors if t is not None] for tensors in (operands, own))
    if before != after:
        digests = {of: digits for of, digits in digests.items() if digits != ONE_NUMBER}
        digests[f"{choice.kernel} operands"] = hashlib.sha256(" ".join(after).encode()).hexdigest()[:16]
    for of, digits in digests.items():
        yield Made(name, of, labels, digits, (choice,))
