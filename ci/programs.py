"""Generated code for a wheel: python -m ci.programs [--only NAME] [--workers N] [--out FILE]

For each device with configs that were measured under the running Triton, generates on a CPU the programs that
the workloads tagged `tune` launch, and adds them to helion_sinkhorn/programs.zip, which `make dist` packs.  A
first call of such a shape then imports no Helion (docs/first_call.md).  `make dist PROGRAMS=1` does it for
two stacks, torch 2.11's (Triton 3.6, Helion 1.5.0) and the newest, in some 20 minutes on two cores.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def make_parser(archive=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", metavar="NAME", help="workloads with this in their names")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, default=archive, help="the archive")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

from rich.progress import track

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import as_called, present_device
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS
from helion_sinkhorn.lab.tuning import selection, warm
from helion_sinkhorn.runtime import generated, shipped
from helion_sinkhorn.runtime.dispatch import signature

MOST = 8192
"""Tokens of the largest workload whose inputs are drawn to find its launches; larger ones draw gigabytes."""


def measured() -> list[str]:
    """Devices with configs that were measured under the running Triton."""
    return [
        device for device in DEVICES
        if any(
            (entry.triton, entry.evidence) == (store.triton_minor(), "measured")
            for folder in store.folders()
            for kernel in KERNELS
            for entry in store.read(folder, device, kernel)
        )
    ]  # fmt: skip


def calls(only: str) -> list[list[Any]]:
    """Workloads, those that differ in the batch alone together: they share programs."""
    drawn = [row.workload for row in OPERATORS.values() if row.call is not None]
    every = [
        w for w in selection.workloads("programs", "tune", only) if type(w) not in drawn or w.batch <= MOST
    ]
    groups = itertools.groupby(sorted(every, key=stem), stem)
    return [list(group) for _, group in groups]


def stem(workload: Any) -> str:
    """A workload's name without its batch."""
    return workload.name.rpartition("_b")[0]


def programs(job: tuple[str, Sequence[Any]]) -> dict[str, str]:
    """The programs of some workloads on a device, by their names in the archive."""
    device, workloads = job
    present_device(DEVICES[device])
    found: dict[str, str] = {}
    for workload in workloads:
        for kernel, arguments in warm.launches(workload, DEVICES[device]):
            with as_called(arguments) as given:
                name = shipped.member(*generated.decisions(kernel, given, signature(tuple(given))))
                if name not in found and (code := generated.code_of(kernel, generated.bound(kernel, given))):
                    found[name] = code
    return found


def main() -> None:
    options = make_parser(shipped.ARCHIVE).parse_args()
    begin = time.perf_counter()
    jobs = [(device, group) for device in measured() for group in calls(options.only)]
    found: dict[str, str] = {}
    # a process for each job, since a presented device stays
    with get_context("spawn").Pool(options.workers, maxtasksperchild=1) as pool:
        for made in track(pool.imap(programs, jobs), "programs", total=len(jobs)):
            found.update(made)
    shipped.write(found, options.out)
    size = options.out.stat().st_size
    print(f"{len(found)} programs, {size / 1e6:.1f} MB, {time.perf_counter() - begin:.0f} s: {options.out}")


if __name__ == "__main__":
    main()
