"""Generated code that comes with the package: python -m ci.programs [--only NAME] [--workers N]

For each device with measured configs, the command generates on a CPU the programs that the workloads tagged
`tune` launch under the running Triton and Helion, and writes the missing ones to helion_sinkhorn/programs/.
A first call of such a shape then imports no Helion (docs/tuning.md).  `make programs` runs it for every
measured stack.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ci.programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME",
        help="workloads with this in their names, or one of these, with commas",
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--out", type=Path, help="another folder than the package's")
    return parser


if __name__ == "__main__":
    # the next lines import torch, which takes seconds
    make_parser().parse_args()

import torch
from rich.progress import track
from torch._subclasses.fake_tensor import FakeTensorMode

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import as_called, present_device
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.tuning import selection, warm
from helion_sinkhorn.runtime import generated, shipped
from helion_sinkhorn.runtime.dispatch import signature
from helion_sinkhorn.runtime.kernel import Built

FAMILY = "hopper"
"""The devices with measured configs; a process pretends to torch and Triton that it has one of them."""
Texts = dict[str, dict[str, str]]
"""Texts by kernel and `shipped.key`."""


def calls(only: str) -> list[list[Any]]:
    """Workloads in groups that differ only in the batch and so share programs."""
    groups = itertools.groupby(sorted(selection.workloads("programs", "tune", only), key=stem), stem)
    return [list(group) for _, group in groups]


def stem(workload: Any) -> str:
    """A workload's name without its batch."""
    return workload.name.rpartition("_b")[0]


def devices() -> list[str]:
    return [key for key, device in DEVICES.items() if device.family == FAMILY]


def begin(folder: Path) -> None:
    """Describe the device and the folder to a new process."""
    end_with_parent()
    shipped.FOLDER = folder
    present_device(DEVICES[devices()[0]])


def key_of(kernel: Built, arguments: Sequence[Any]) -> str:
    """The name of the program of a launch on the presented device, found without Helion."""
    with FakeTensorMode():
        given = tuple(
            torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="cuda:0")
            if isinstance(a, torch.Tensor)
            else a
            for a in arguments
        )
        return shipped.key(*generated.decisions(kernel, given, signature(given)))


def programs(workloads: Sequence[Any]) -> Texts:
    """The programs of some workloads; those that the package has are read from it."""
    by_name: Texts = defaultdict(dict)
    for device, workload in itertools.product(devices(), workloads):
        for kernel, arguments in warm.launches(workload, DEVICES[device]):
            of, texts = key_of(kernel, arguments), by_name[kernel.kernel.name]
            if of not in texts:
                texts[of] = shipped.programs(kernel.kernel).get(of) or generate(kernel, arguments)
    return {name: {of: text for of, text in texts.items() if text} for name, texts in by_name.items()}


def generate(kernel: Built, arguments: Sequence[Any]) -> str | None:
    """The text of a program; None if it needs Helion."""
    with as_called(arguments) as given:
        return generated.code_of(kernel, generated.bound(kernel, given))


def main() -> None:
    options = make_parser().parse_args()
    start = time.perf_counter()
    shipped.FOLDER = options.out or shipped.FOLDER
    by_name: Texts = {name: {} for name in KERNELS}
    # else Helion keeps all that it traced
    with get_context("spawn").Pool(options.workers, begin, (shipped.FOLDER,), maxtasksperchild=8) as pool:
        jobs = calls(options.only)
        for part in track(pool.imap_unordered(programs, jobs), "programs", total=len(jobs)):
            for name, texts in part.items():
                by_name[name].update(texts)
    for name, texts in by_name.items():
        if texts:
            stacks = shipped.read(KERNELS[name])
            # with all workloads, programs of configs that are no longer stored are removed
            before = stacks.get(shipped.stack(), {}) if options.only else {}
            shipped.write(KERNELS[name], {**stacks, shipped.stack(): {**before, **texts}})
    count, size = sum(map(len, by_name.values())), sum(p.stat().st_size for p in shipped.FOLDER.glob("*.xz"))
    print(
        f"{count} programs of {shipped.stack()}, {time.perf_counter() - start:.0f} s; "
        f"{shipped.FOLDER} has {size / 1e6:.2f} MB"
    )


if __name__ == "__main__":
    main()
