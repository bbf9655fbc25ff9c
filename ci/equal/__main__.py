"""Compare results in every bit, without a tolerance: python -m ci.equal [--devices ...] [--workloads ...]

Kernels are compiled in Triton's FPSan mode (docs/dev/equality.md), with each stored config and the default,
and run on the GPU at hand, or else for gfx950 and gfx942 by the emulator.  Their results must be equal config
with config and device with device, and equal to what docs/equal has of every device; --write puts them there.
The exit status is the verdict.
"""

from __future__ import annotations

import argparse
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_parser(devices=None, names=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.equal", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", nargs="+", choices=devices, help="AMD's, emulated; else the GPU at hand")
    parser.add_argument("--workloads", nargs="+", default=names, metavar="NAME[:RESULT,...]",
                        help="those of ci/equal/table.py if left out")  # fmt: skip
    parser.add_argument("--served", action="store_true", help="only the config that each call gets")
    parser.add_argument("--write", action="store_true", help="put the results into the folder")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "equal", help="folder of committed results"
    )
    parser.add_argument("--cache", type=Path, default=ROOT / ".emulated", help="folder of compiled programs")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import torch

from ci import accuracy
from ci.equal import compare, run, table
from ci.equal.compare import Row
from helion_sinkhorn.configs.device import DEVICES, current
from helion_sinkhorn.lab.parent import end_with_parent


def about(key: str, emulated: bool) -> dict[str, object]:
    """What the rows of a device are of."""
    row = DEVICES[key]
    name = f"{row.arch} code emulated on a CPU ({platform.machine()}), never run on a GPU"
    return {
        "device": {"key": key, "arch": row.arch, "emulated": emulated,
                   "name": name if emulated else torch.cuda.get_device_name()},
        "versions": accuracy.versions(),
        "mode": "TRITON_INSTRUMENTATION_MODE=fpsan",
    }  # fmt: skip


def main() -> int:
    amd = [k for k, d in DEVICES.items() if d.vendor == "amd"]
    names = [name for of in table.WORKLOADS.values() for name in of]
    options = make_parser(amd, names).parse_args()
    cache = options.cache.resolve()
    found: dict[str, list[Row]] = {}
    wrong = []
    if options.devices or not torch.cuda.is_available():
        for key in options.devices or ("mi350", "mi300x"):
            # torch and Triton keep a device for the life of a process
            with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent) as pool:
                found[key], failed = pool.submit(
                    run.rows, key, options.workloads, options.served, cache
                ).result()
            wrong += failed
    else:
        found[current(0).key], wrong = run.rows(None, options.workloads, options.served, cache)
    here = {f"{key}, {'emulated' if DEVICES[key].vendor == 'amd' else 'run'}": r for key, r in found.items()}
    # this run replaces what was committed of its devices
    stored = {} if not options.out.exists() else {p.stem: compare.read(p) for p in options.out.glob("*.json")}
    for key, made in found.items():
        if options.write:
            emulated = bool(options.devices) or not torch.cuda.is_available()
            compare.write(options.out / f"{key}.json", about(key, emulated), made)
            stored.pop(key, None)
    done = {r.key for made in found.values() for r in made}
    committed = {f"{key}, committed": [r for r in held if r.key in done] for key, (_, held) in stored.items()}
    wrong += compare.differences(here | committed)
    for source, other in committed.items():
        for name, made in here.items():
            both = len({r.key for r in made} & {r.key for r in other})
            equal = compare.shared(made, other)
            print(f"{name} and {source}: {equal} of {both} results are equal in every bit")
    count = sum(map(len, here.values()))
    print(*wrong, sep="\n", file=sys.stderr)
    print(f"{', '.join(here)}: {count} results; {f'{len(wrong)} are wrong' if wrong else 'all equal'}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
