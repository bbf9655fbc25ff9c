"""The results of a device as rows: of workloads, and of every stored config."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import torch

from ci.equal import run, stored
from ci.equal.compare import Row
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime.launch import device_of


def of_device(
    key: str | None, names: list[str], used: bool, kernels: list[str], cache: Path
) -> tuple[list[Row], list[str]]:
    """The results of an emulated device or of the present GPU, and what did not run.

    Args:
        names: NAME, NAME:RESULT,... or NAME:KERNEL,...
        used: only the configs that calls get.
        kernels: kernels whose stored configs are all run.
    """
    found: list[run.Made] = []
    failed: list[str] = []
    with run.emulated(key, cache) if key else run.on_gpu(cache) as place:
        device = device_of(torch.empty(0, device=place))
        for text in names:
            name, _, results = text.partition(":")
            begin = time.monotonic()
            try:
                wanted = frozenset(filter(None, results.split(",")))
                for kernel in sorted(wanted & KERNELS.keys()):
                    found += stored.alone(WORKLOADS[name], kernel, device, place, used)
                if not wanted or wanted - KERNELS.keys():
                    found += run.made(WORKLOADS[name], wanted, place, used)
            except Exception as error:
                failed.append(f"{name} on {key or 'this GPU'}: {type(error).__name__}: {error}")
            print(f"{key or 'GPU'}: {name}, {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
        for kernel in kernels:
            found += stored.made(kernel, device, place, failed)

    def of(m: run.Made) -> tuple[str, str, tuple[str, ...], str]:
        return m.workload, m.of, m.classes, m.digest

    groups = itertools.groupby(sorted(found, key=of), of)
    return [Row(*key, len({m.launched for m in group})) for key, group in groups], failed
