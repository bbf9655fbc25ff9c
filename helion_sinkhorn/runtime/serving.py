"""Which config a launch uses, what is done where it is refused, and launches kept for calls like it."""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.configs.lookup import lookup, other_batches, tuned_keys
from helion_sinkhorn.runtime.dispatch import kept_launch, run
from helion_sinkhorn.runtime.kernel import Built, Choice, Kernel, build, default_choice, in_space
from helion_sinkhorn.runtime.views import VECTOR_BYTES

log = logging.getLogger("helion_sinkhorn")
MOST_REPEATS = 4096
Tensors = tuple[torch.Tensor | None, ...]
Choices = Mapping[str, Choice]
"""Configs that the caller names in place of stored ones, by kernel or by result."""
NO_CHOICES: Choices = MappingProxyType({})
_kept: dict[Hashable, Callable[..., None] | None] = {}
"""Kept launches, by everything a launch depends on except tensor addresses; None: it cannot be repeated."""
_refused: set[tuple[Choice, Any, Device]] = set()
"""Stored choices that did not run, each for one call of one device."""
NOT_OF_A_CONFIG = "out of memory", "illegal memory access", "launch failure", "device-side assert"
"""What errors say that another config would raise too: memory is full, or an earlier kernel failed."""
_saying = threading.Lock()


@dataclass(frozen=True)
class Served:
    """What a kernel is launched with."""

    choice: Choice
    kernel: Built
    device: Device
    reciprocal: str
    interpret: bool
    named: bool
    """Whether the caller named the choice."""


class Asked(NamedTuple):
    """Which config of which operator a launch is looked up by: the arguments of `serve` of these names."""

    kernels: Mapping[str, Kernel]
    name: str
    call: Any


def index_of(x: torch.Tensor) -> int | None:
    """The GPU a tensor is on."""
    return x.device.index if x.is_cuda else None


def device_at(index: int | None) -> tuple[Device, str, bool]:
    """The device row of cuda:index, its reciprocal, and whether bodies are interpreted.

    None is a CPU, which interprets them with an H200's configs.
    """
    if index is None:
        return DEVICES["h200"], "full", True
    device = current(index)
    return device, device.asm, False


@functools.lru_cache(maxsize=4096)
def choose(kernel: Kernel, call: Any, batch: int, device: Device) -> Choice:
    """The config stored for a call of a kernel, or for a similar one, if it is in the kernel's space for this
    call; else the default."""
    batch = kernel.batch(call, batch)
    found = ((key, lookup(device, kernel.name, key, batch)) for key in kernel.keys(call))
    key, entry = next((pair for pair in found if pair[1] is not None), (call.key, None))
    if entry is not None:
        measured = entry.evidence == "measured" and Path(entry.path).parent.name == device.key
        stored = Choice(kernel.name, entry.config, entry.variant, entry.source, True, measured)
        if not in_space(kernel, stored, call, device):
            if key != call.key:
                return default_choice(kernel, call, device)
            take_out(stored, call, device, ValueError(f"`make tune` tries no such config for {call}"))
        if (stored, call, device) not in _refused:
            return stored
    return default_choice(kernel, call, device)


def refuse(choice: Choice, call: Any, device: Device, refusal: Exception) -> None:
    """Take a stored choice that did not run out of service for a call.

    Raises:
        Exception: the refusal itself, where the choice was not a stored one or is not to blame.
    """
    if not choice.stored or not is_of_the_config(refusal):
        raise refusal
    take_out(choice, call, device, refusal)


def take_out(choice: Choice, call: Any, device: Device, refusal: Exception) -> None:
    """Use the default config for a call from now on, and say why once."""
    with _saying:
        if (choice, call, device) not in _refused:
            log.warning("%s is refused (%s): the kernel's default config is used", choice, refusal)
            _refused.add((choice, call, device))
    choose.cache_clear()


def is_of_the_config(refusal: Exception) -> bool:
    """Whether another config may do where this was raised.

    Not where memory or a disk is full or an earlier kernel failed.  Nor in the capture of a CUDA graph, which
    cannot begin to use a program: called once before, it can.
    """
    if isinstance(refusal, (torch.OutOfMemoryError, OSError)):
        return False
    if any(word in str(refusal) for word in NOT_OF_A_CONFIG):
        return False
    return not (torch.cuda.is_available() and torch.cuda.is_current_stream_capturing())


@functools.cache
def say_untuned(device: Device, name: str) -> None:
    """Once a process: nothing is stored for a call that the tuner would cover."""
    log.warning(
        "%s is not tuned for %s and runs with its default config; `make tune DEVICE=%s KERNEL=%s` tunes it",
        name, device.key, device.key, name,
    )  # fmt: skip


@functools.cache
def say_far(device: Device, name: str, batches: str) -> None:
    """Once a process: what is stored is for other batches, which tuning again would not change."""
    log.info(
        "%s is tuned for %s at batch %s, each more than 4 times away from that of some calls: these run with "
        "its default config", name, device.key, batches,
    )  # fmt: skip


def say_default(device: Device, name: str, call: Any, batch: int) -> None:
    """Say why a call that the tuner covers runs with the default, unless `refuse` has."""
    if lookup(device, name, call.key, batch) is not None:
        return
    batches = other_batches(device, name, call.key)
    with _saying:
        if batches:
            say_far(device, name, batches)
        else:
            say_untuned(device, name)


def serve(
    kernels: Mapping[str, Kernel],
    name: str,
    call: Any,
    batch: int,
    x: torch.Tensor,
    launch: Callable[[Served], None],
    choice: Choice | None = None,
) -> None:
    """Launch a kernel where x is, with the choice named, the stored one, or the default if that is refused.

    Args:
        kernels: those of the operator; a choice that the caller names may be one for another of them.
        name: the kernel that runs where the caller names no choice.
        call, batch: what its config is looked up by.
        x: a tensor on the device.
        launch: makes the launch.
        choice: of the caller.
    """
    device, how, interpret = device_at(index_of(x))
    taken = choice or choose(kernels[name], call, batch, device)
    if not (interpret or taken.stored or choice) and device.key in DEVICES and call.key in tuned_keys(name):
        say_default(device, name, call, kernels[name].batch(call, batch))
    try:
        kernel = build(kernels[taken.kernel], taken.config, interpret)
        launch(Served(taken, kernel, device, how, interpret, choice is not None))
    except Exception as refusal:
        refuse(taken, call, device, refusal)
        serve(kernels, name, call, batch, x, launch)


def layout_key(*tensors: torch.Tensor | None) -> Hashable:
    """What calls have in common that one kept launch can make, as far as their tensors decide it."""
    return tuple([None if t is None else (t.shape, t.stride(), t.dtype, t.device) for t in tensors])


def launch_kept(key: Hashable, *tensors: torch.Tensor | None) -> bool:
    """Make the launch that was kept under this key, if there is one and it takes these addresses."""
    kept = _kept.get(key)
    if kept is None:
        return False
    given = [t for t in tensors if t is not None]
    if not aligned(given):
        return False
    kept(*given)
    return True


def aligned(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether vector loads of them need no check."""
    return not any([t.data_ptr() % VECTOR_BYTES for t in tensors])


def run_and_keep(
    kernel: Built, views: Tensors, constants: tuple[Any, ...], tensors: Tensors, key: Hashable
) -> None:
    """One launch on views of the tensors; where they are no copies it is kept for the calls like it."""
    run(kernel, *views, *constants)
    in_place = all(
        v is t or v.data_ptr() == t.data_ptr()  # v and t are both None, or neither
        for v, t in zip(views, tensors, strict=True)
    )
    if in_place and key not in _kept and aligned(t for t in tensors if t is not None):
        # a program of ever new shapes starts anew now and then
        if len(_kept) >= MOST_REPEATS:
            _kept.clear()
        _kept[key] = kept_launch(kernel, *views, *constants)
