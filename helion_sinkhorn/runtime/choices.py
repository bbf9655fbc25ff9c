"""Which config a call gets, and what happens when a stored one is refused."""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path
from typing import Any

import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.lookup import lookup, other_batches, tuned_keys
from helion_sinkhorn.runtime.checks import is_capturing
from helion_sinkhorn.runtime.kernel import Choice, Kernel, default_choice, in_space

log = logging.getLogger("helion_sinkhorn")
refused: set[tuple[Choice, Any, Device]] = set()
"""Stored choices that failed to run, each for one call on one device."""
NOT_OF_A_CONFIG = "out of memory", "illegal memory access", "launch failure", "device-side assert"
"""Words of errors that any config would raise: memory is full, or an earlier kernel failed."""
_saying = threading.Lock()


@functools.lru_cache(maxsize=4096)
def choose(kernel: Kernel, call: Any, batch: int, device: Device) -> Choice:
    """The config stored for a call or a similar one, if it is in the kernel's space for this call; else the
    default.
    """
    batch = kernel.batch(call, batch)
    stored = ((key, lookup(device, kernel.name, key, batch)) for key in kernel.keys(call))
    key, entry = next((pair for pair in stored if pair[1] is not None), (call.key, None))
    if entry is not None:
        measured = entry.evidence == "measured" and Path(entry.path).parent.name == device.key
        stored = Choice(kernel.name, entry.config, entry.variant, entry.source, True, measured)
        if not in_space(kernel, stored, call, device):
            if key != call.key:
                return default_choice(kernel, call, device)
            take_out(stored, call, device, ValueError(f"`make tune` tries no such config for {call}"))
        if (stored, call, device) not in refused:
            return stored
    return default_choice(kernel, call, device)


def refuse(choice: Choice, call: Any, device: Device, refusal: Exception) -> None:
    """Do not use a stored choice again for a call in which it failed to run.

    Raises:
        Exception: the refusal itself, if the choice was not a stored one or another config would fail too.
    """
    if not choice.stored or not is_of_the_config(refusal):
        raise refusal
    take_out(choice, call, device, refusal)


def take_out(choice: Choice, call: Any, device: Device, refusal: Exception) -> None:
    """Use the default config for a call from now on, and say why once."""
    with _saying:
        if (choice, call, device) not in refused:
            log.warning("%s is refused (%s): the kernel's default config is used", choice, refusal)
            refused.add((choice, call, device))
    choose.cache_clear()


def is_of_the_config(refusal: Exception) -> bool:
    """Whether another config may run where this error was raised.

    No config runs if memory or a disk is full or an earlier kernel failed.  In the capture of a CUDA graph no
    new program can be loaded, so the call has to be made once before the capture.
    """
    if isinstance(refusal, (torch.OutOfMemoryError, OSError)):
        return False
    if any(word in str(refusal) for word in NOT_OF_A_CONFIG):
        return False
    return not is_capturing()


@functools.cache
def say_untuned(device: Device, name: str) -> None:
    """Warn once a process that nothing is stored for a call that the tuner covers."""
    log.warning(
        "%s is not tuned for %s and runs with its default config; `make tune DEVICE=%s KERNEL=%s` tunes it",
        name, device.key, device.key, name,
    )  # fmt: skip


@functools.cache
def say_far(device: Device, name: str, batches: str) -> None:
    """Log once a process that stored configs are for other batches; tuning again would not change that."""
    log.info(
        "%s is tuned for %s at batch %s, and some calls have a batch more than 4 times away from each: "
        "they run with its default config", name, device.key, batches,
    )  # fmt: skip


def say_default(device: Device, name: str, call: Any, batch: int) -> None:
    """Say why a call that the tuner covers runs with the default, unless `refuse` has."""
    if call.key not in tuned_keys(name) or lookup(device, name, call.key, batch) is not None:
        return
    batches = other_batches(device, name, call.key)
    with _saying:
        if batches:
            say_far(device, name, batches)
        else:
            say_untuned(device, name)
