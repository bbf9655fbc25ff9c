"""The results of a device as rows: of workloads, and of every stored config."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from ci.equal import run, stored
from ci.equal.compare import Row
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.launch import device_of

Part = str | tuple[Key, Choice]
"""NAME, NAME:RESULT,... or NAME:KERNEL,..., or a call of a kernel and one of the configs stored for it."""


def of_device(
    device: Device,
    emulated: bool,
    names: Iterable[str],
    used: bool,
    kernels: Iterable[str],
    cache: Path,
    jobs: int,
) -> tuple[list[Row], list[str]]:
    """The results of an emulated device or of the present GPU, and what did not run.

    Args:
        names: NAME, NAME:RESULT,... or NAME:KERNEL,...
        used: only the configs that calls get.
        kernels: kernels whose stored configs are all run.
        jobs: processes that work at a time.
    """
    parts: list[Part] = [
        *names,
        *((c, one) for k in kernels for c, configs in stored.choices(k, device).items() for one in configs),
    ]
    results: list[run.Made] = []
    failed: list[str] = []
    # torch and Triton keep a device for the life of a process.  A forked one has imported them, but cannot
    # use a GPU that was used before
    method = get_context("fork" if emulated else "spawn")
    key = device.key if emulated else None
    with ProcessPoolExecutor(jobs, method, end_with_parent) as pool:
        for k, done in enumerate(
            as_completed(pool.submit(of_part, key, part, used, cache) for part in parts), 1
        ):
            own, wrong, said = done.result()
            results += own
            failed += wrong
            print(f"{k} of {len(parts)}: {said}", *wrong, sep="\n", file=sys.stderr, flush=True)

    def of(m: run.Made) -> tuple[str, str, tuple[str, ...], str]:
        return m.workload, m.of, m.classes, m.digest

    groups = itertools.groupby(sorted(results, key=of), of)
    return [Row(*key, len({m.launched for m in group})) for key, group in groups], failed


def of_part(key: str | None, part: Part, used: bool, cache: Path) -> tuple[list[run.Made], list[str], str]:
    """The results of one part, what did not run, and a line that says how long it took."""
    results: list[run.Made] = []
    failed: list[str] = []
    begin = time.monotonic()
    name = part if isinstance(part, str) else f"{part[1].kernel}, {stored.named(part[0])}"
    try:
        with run.emulated(key, cache) if key else run.on_gpu(cache) as place:
            device = device_of(torch.empty(0, device=place))
            if isinstance(part, str):
                results += of_workload(part, used, device, place)
                failed += [
                    f"{name}: {m.of} is one number everywhere in the ring, where a comparison may mask all; "
                    "compare a workload in which it varies"
                    for m in results
                    if m.digest == run.ONE_NUMBER
                ]
            else:
                results += stored.made(*part, place)
    except Exception as error:
        choice = "" if isinstance(part, str) else f"{part[1]}: "
        failed.append(f"{name} on {key or 'this GPU'}: {choice}{type(error).__name__}: {error}")
    return results, failed, f"{key or 'GPU'}: {name}, {time.monotonic() - begin:.0f} s"


def of_workload(text: str, used: bool, device: Device, place: str) -> Iterable[run.Made]:
    """The results of a workload that `text` names."""
    name, _, results = text.partition(":")
    wanted = frozenset(filter(None, results.split(",")))
    for kernel in sorted(wanted & KERNELS.keys()):
        yield from stored.alone(WORKLOADS[name], kernel, device, place, used)
    if not wanted or wanted - KERNELS.keys():
        yield from run.made(WORKLOADS[name], wanted, place, used)
