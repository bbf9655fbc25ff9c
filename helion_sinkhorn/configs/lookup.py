"""Which stored config a call gets; never one of another vendor."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES, Device

log = logging.getLogger("helion_sinkhorn")
# An entry is used for batches up to 4 times smaller or larger than its own.
MAX_LOG2_DISTANCE = 2.0
# A batch up to this leaves a device mostly idle, so its entry is used for smaller ones too.
SMALL_BATCH = 128
MINOR_VERSION = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")
_reading = threading.Lock()


def preferred(
    entries: tuple[store.Entry, ...], key: store.Key, batch: int, running: str,
    others: Iterable[store.Entry] = (),
) -> store.Entry | None:  # fmt: skip
    """The entry of this key whose Triton comes first by `distance`, and of those the nearest in batch.

    The best config of one version may be several times as slow under another.  A call may get one of the
    others instead.
    """
    of_key = tuple(e for e in entries if e.key == key)
    # if tuning stopped halfway, another device may have the larger batches
    tuned = [e.batch for e in (*of_key, *others) if e.key == key] or [1]
    # larger batches fill a device like the largest tuned one, and smaller ones leave it idle like a small
    # one: a server meets one config from one token up
    least = min(tuned) if min(tuned) <= SMALL_BATCH else 1
    batch = min(max(batch, least), max(tuned))
    for version in sorted({e.triton for e in of_key}, key=lambda v: distance(v, running)):
        if entry := nearest(tuple(e for e in of_key if e.triton == version), batch):
            return entry
    return None


def distance(version: str, running: str) -> tuple[bool, bool, int, int]:
    """A sort key of minor versions such as "3.6": the running one, later ones, earlier ones, the nearest
    first.

    Later ones come before earlier ones, because changes of code generation stay: 3.7 distributes blocks over
    threads as 3.9 does.  Of 18 configs of conjugate gradients that were chosen under 3.6, three spill or
    shuffle several times as much under 3.7; of 22 that were chosen under 3.9, none does (sm_90).
    """
    of, own = number(version), number(running)
    if of is None or own is None:
        return version != running, True, sys.maxsize, -(of or 0)
    return version != running, of < own, abs(of - own), 0


def number(version: str) -> int | None:
    """A minor version as a number that grows with it; None for anything else."""
    if not MINOR_VERSION.fullmatch(version):
        return None
    major, minor = map(int, version.split("."))
    return 1000 * major + minor


def nearest(entries: tuple[store.Entry, ...], batch: int) -> store.Entry | None:
    """The entry whose batch is nearest in log2, at most 4 times away."""
    candidates = [(abs(math.log2(e.batch / batch)), e.batch, e) for e in entries]
    away, _, entry = min(candidates, key=lambda c: c[:2], default=(math.inf, 0, None))
    return entry if away <= MAX_LOG2_DISTANCE else None


@functools.lru_cache(maxsize=4096)
def lookup(device: Device, kernel: str, key: store.Key, batch: int) -> store.Entry | None:
    """The entry of a call; None if only the kernel's default is left.

    The user's folder comes before the package's.  In a folder, entries of the running Triton come before
    others, and among these the device's own before its family's.
    """
    # without the lock several threads could compute it at once, each with its warning
    with _reading:
        return find(device, kernel, key, batch, store.folders())


@functools.cache
def say_version(kernel: str, triton: str, running: str) -> None:
    """Log once a process that calls of a kernel get entries of another Triton."""
    log.info(
        "%s: no entry of Triton %s for some calls, using entries of Triton %s",
        kernel, running, triton or "an unknown one",
    )  # fmt: skip


def own_and_family(device: Device) -> list[str]:
    """The devices whose entries this one may use, in order."""
    relatives = [d.key for d in DEVICES.values() if d.family == device.family and d.key != device.key]
    return [device.key, *relatives]


@functools.cache
def other_batches(device: Device, kernel: str, key: store.Key) -> str:
    """The batches and versions of Triton at which a key is tuned, in words; empty if there are none."""
    entries = [
        entry
        for name in own_and_family(device)
        for folder in store.folders()
        for entry in store.read(folder, name, kernel)
        if entry.key == key
    ]
    versions = ", ".join(sorted({entry.triton or "an unknown one" for entry in entries}))
    batches = sorted({entry.batch for entry in entries})
    return f"{', '.join(map(str, batches))} (Triton {versions})" if entries else ""


@functools.cache
def tuned_keys(kernel: str) -> frozenset[store.Key]:
    """The keys for which some device has an entry, that is, what `make tune` covers."""
    files = itertools.product(store.folders(), DEVICES)
    return frozenset(entry.key for folder, name in files for entry in store.read(folder, name, kernel))


def find(
    device: Device, kernel: str, key: store.Key, batch: int, folders: Sequence[Path], running: str = ""
) -> store.Entry | None:
    """`lookup` in these folders, in order, under a minor version of Triton (empty: the running one)."""
    running = running or store.triton_minor()
    for folder in folders:
        files = {name: store.read(folder, name, kernel) for name in own_and_family(device)}
        every = tuple(itertools.chain(*files.values()))
        candidates = [
            (name, entry)
            for name, entries in files.items()
            if (entry := preferred(entries, key, batch, running, every))
        ]
        if not candidates:
            continue
        # on an H100 its own config is at most 1.15 times as fast as an H200's (184 keys, median 1.00),
        # but Triton 3.9 runs its own config up to 1.28 times as fast as one of 3.6 (92 keys, median 1.04)
        name, entry = min(candidates, key=lambda pair: distance(pair[1].triton, running))
        if entry.triton != running:
            say_version(kernel, entry.triton, running)
        if name != device.key:
            log.info("%s: no entry for %s, serving the one tuned on %s", kernel, device.key, name)
        return entry
    return None
