"""Entries of tuning_cache/ under every Triton at hand: python -m ci.machine_versions [--packages FOLDERS ...]

If the running Triton has no entry for a call, look-up takes one of another version (configs/lookup.py), whose
time may not hold.  For the installed version and those in the folders given, the command compiles on a CPU
each config that look-up would take.  A config that was not measured under the compiling version may break no
rule, and may have about as many spilled bytes and cross-lane instructions as under the version with which it
was chosen.  A config that was only ranked must keep everything in registers, as defaults must.  The exit
status is 1 if a config fails.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any


def make_parser(devices=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--packages", nargs="*", default=[], metavar="FOLDERS",
        help="where another Triton is: a folder, or several with : between them",
    )  # fmt: skip
    parser.add_argument("--only", nargs="+", choices=devices, default=devices, metavar="DEVICE")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="compilers side by side")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

from ci import machine_rules
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.configs.lookup import find
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import compile_for
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime.kernel import Choice

GROWTH, FEW = 1.3, 16
"""The factor by which spilled bytes and cross-lane instructions may grow, and how many of the latter may be
added in any case.
"""


@dataclass(frozen=True)
class Served:
    """A program that look-up takes from the entries of one Triton while another one runs."""

    device: str
    job: Job
    made: str
    """The minor version of the entry."""


def at_hand(folders: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """minor version of Triton -> its folders; no folders for the installed one.

    Raises:
        SystemExit: folders without a Triton.
    """
    versions = {store.triton_minor(): ()}
    for paths in folders:
        # absolute, for processes that start in another folder
        packages = tuple(map(os.path.abspath, paths.split(os.pathsep)))
        there = next(iter(distributions(name="triton", path=list(packages))), None)
        if there is None:
            raise SystemExit(
                f"--packages {paths}: no Triton there; `pip install --target FOLDER triton==3.6.0`"
            )
        versions[store.minor(there.version)] = packages
    return versions


def served(folder: Path, device: str, running: str) -> Iterator[Served]:
    """The programs that look-up takes under a version without a time of that version, each once."""
    batches: dict[tuple[Any, Choice, str], int] = {}
    for kernel in KERNELS:
        entries = store.read(folder, device, kernel)
        for key, batch in dict.fromkeys((e.key, e.batch) for e in entries):
            entry = find(DEVICES[device], kernel, key, batch, [folder], running)
            if (entry.triton, entry.evidence) != (running, "measured"):
                choice = Choice(kernel, entry.config, entry.variant, entry.source, True)
                program = KERNELS[kernel].call.of(key), choice, entry.triton
                batches[program] = max(batches.get(program, 0), batch)
    # of the size that will run, because beyond 2^31 entries offsets take 64 bits and more registers
    for (call, choice, made), batch in batches.items():
        yield Served(device, Job(call, choice, batch), made)


def broken(binary: Binary, chosen_with: Binary | None) -> Iterator[str]:
    """What is wrong with a program that was not measured under this version.

    chosen_with: the program under the version with which its config was chosen; None if that is this one.
    """
    known = machine_rules.broken(chosen_with) if chosen_with else []
    yield from (what for what in machine_rules.broken(binary) if what not in known)
    if not binary.compiled:
        return
    spilled = chosen_with.spill_bytes if chosen_with else 0
    if not spilled or binary.spill_bytes > GROWTH * spilled:
        yield from machine_rules.unallowed_spills(binary)
    if chosen_with is not None:
        before, after = (b.counts.get("cross-lane", 0) for b in (chosen_with, binary))
        if after > max(GROWTH * before, before + FEW):
            yield f"{after} cross-lane instructions, {before} under the Triton it was chosen with"


def main() -> int:
    options = make_parser(list(DEVICES)).parse_args()
    versions, shipped = at_hand(options.packages), store.folders()[-1]
    breaches = 0
    for device in options.only:
        todo = {v: list(dict.fromkeys(served(shipped, device, v))) for v in versions}
        binaries: dict[tuple[str, Job], Binary] = {}
        for version, packages in versions.items():
            begin = time.monotonic()
            own = [s.job for v in versions for s in todo[v] if version in (v, s.made)]
            jobs = list(dict.fromkeys(own))
            for binary in compile_for(device, jobs, workers=options.workers, packages=packages):
                binaries[version, binary.job] = binary
            print(f"{device}, Triton {version}: {len(jobs)} programs in {time.monotonic() - begin:.0f} s")
        for version, one in ((v, s) for v in versions for s in todo[v]):
            before = binaries.get((one.made, one.job)) if one.made != version else None
            for what in broken(binaries[version, one.job], before):
                breaches += 1
                print(f"{device}, Triton {version}: {one.job.call} {one.job.choice}: {what}")
    return int(breaches > 0)


if __name__ == "__main__":
    sys.exit(main())
