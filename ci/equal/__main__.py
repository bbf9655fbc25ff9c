"""Compare results in every bit, without a tolerance: python -m ci.equal [--devices ...] [--workloads ...]

Kernels are compiled in Triton's FPSan mode (docs/dev/equality.md), with each stored config and the default,
and run on the GPU at hand, or else for gfx950 and gfx942 by the emulator.  Their results must be equal config
with config and device with device, and equal to what docs/equal has of every device; --write puts them there.
The exit status is the verdict.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATED = ("mi350", "mi300x")
"""gfx950 and gfx942, where there is no GPU."""


def make_parser(devices=None, kernels=None) -> argparse.ArgumentParser:
    """The command line, without the names and defaults for which torch would have to be imported."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.equal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", nargs="+", choices=devices, help="AMD's, emulated; else the GPU at hand")
    parser.add_argument("--workloads", nargs="+", metavar="NAME[:RESULT,...]",
                        help="if left out, as in ci/equal/table.py, and so --stored")  # fmt: skip
    parser.add_argument("--used", action="store_true", help="only the config that each call gets")
    parser.add_argument("--stored", nargs="*", choices=kernels, metavar="KERNEL",
                        help="the default and every stored config of these kernels, or of all")  # fmt: skip
    parser.add_argument("--write", action="store_true", help="put the results into the folder")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "equal", help="folder of committed results"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes, which compile for most of the time")
    parser.add_argument("--cache", type=Path, default=ROOT / ".emulated", help="folder of compiled programs")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import torch

from ci import accuracy
from ci.equal import compare, rows, run, table
from ci.equal.compare import Row
from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.lab.operators import KERNELS


def about(row: Device, emulated: bool) -> dict[str, object]:
    """The versions and sources that a device's rows belong to."""
    name = f"{row.arch} code emulated on a CPU ({platform.machine()}), never run on a GPU"
    return {
        "device": {"key": row.key, "arch": row.arch, "emulated": emulated,
                   "name": name if emulated else torch.cuda.get_device_name()},
        "versions": accuracy.versions(),
        "mode": "TRITON_INSTRUMENTATION_MODE=fpsan",
    }  # fmt: skip


def main() -> int:
    amd = [k for k, d in DEVICES.items() if d.vendor == "amd"]
    options = make_parser(amd, list(KERNELS)).parse_args()
    emulated = bool(options.devices) or not torch.cuda.is_available()
    names = [name for of in table.WORKLOADS.values() for name in of] if options.stored is None else []
    if emulated:
        names = [name for name in names if name not in table.NOT_EMULATED]
    kernels = options.stored if options.stored or options.stored is None else list(KERNELS)
    devices = [DEVICES[key] for key in options.devices or EMULATED] if emulated else [current(0)]
    what = options.workloads or names, options.used, kernels or [], options.cache.resolve(), options.jobs
    by_device: dict[str, list[Row]] = {}
    wrong: list[str] = []
    for device in devices:
        key = device.key
        by_device[key], failed = rows.of_device(device, emulated, *what)
        wrong += failed
        if options.write:
            compare.write(options.out / f"{key}.json", about(device, emulated), by_device[key])
    here = {f"{key}, {'emulated' if emulated else 'on this GPU'}": made for key, made in by_device.items()}
    done = {r.key for made in by_device.values() for r in made}
    committed = {}
    for path in sorted(options.out.glob("*.json")):
        held, kept = compare.read(path)
        of, mine = held["versions"]["triton"], accuracy.versions()["triton"]
        if of.split(".")[:2] != mine.split(".")[:2]:
            # the numbers that name elements differ by version
            print(f"{path.stem} is not compared: its digests are of Triton {of}, and this is {mine}")
            continue
        # what this run has written is compared as it was found
        if not (options.write and path.stem in by_device):
            label = "emulated" if held["device"]["emulated"] else "on a GPU"
            committed[f"{path.stem}, {label}, committed"] = [r for r in kept if r.key in done]
    for (a, made), (b, others) in itertools.combinations((here | committed).items(), 2):
        if a in here:
            both = {r.key for r in made} & {r.key for r in others}
            print(
                f"{a} and {b}: {compare.shared(made, others)} of {len(both)} results are equal in every bit"
            )
    wrong += compare.differences(here | committed)
    print(*wrong, sep="\n", file=sys.stderr)
    silent = [r for made in by_device.values() for r in made if r.digest == run.ONE_NUMBER]
    for r in silent:
        print(f"{r.workload}: {r.of} is one number with each of {r.configs} configs, which shows nothing")
    count = len({(key, r.key) for key, made in by_device.items() for r in made if r.digest != run.ONE_NUMBER})
    verdict = f"{len(wrong)} are wrong" if wrong else "all equal" if count else "nothing was compared"
    print(f"{'; '.join(here)}: {count} results; {verdict}")
    return bool(wrong) or not count


if __name__ == "__main__":
    sys.exit(main())
