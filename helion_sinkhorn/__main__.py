"""python -m helion_sinkhorn: tune, show, check, readme, warm, env."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.tuning.commands import check, environment, readme, show, tune, warm


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m helion_sinkhorn", description=__doc__)
    commands = whole.add_subparsers(metavar="command")
    one = commands.add_parser("tune", help="time candidate configs on this device and store the best")
    one.add_argument("--device", required=True, choices=DEVICES, help="what this machine must be")
    one.add_argument("--kernel", help="one kernel instead of all")
    one.add_argument("--tags", default="tune", help="which WORKLOADS (default: tune)")
    one.add_argument("--only", default="", help="only workloads with this in their names, such as _4x4_fp32_")
    one.add_argument("--effort", choices=["quick", "full"], default="quick")
    one.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="seconds the whole command may take (default: any)",
    )
    one.add_argument("--force", action="store_true", help="tune keys again that have a fresh entry")
    one.add_argument(
        "--offline", action="store_true", help="no GPU: rank machine code compiled for the device"
    )
    one.add_argument("--out", type=Path, default=store.folders()[-1], help="default: the repository's folder")
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores of this rank)")
    one.add_argument("--commit", default="", help="recorded where git cannot tell")
    one.set_defaults(run=tune)
    one = commands.add_parser("show", help="which config each workload gets on a device, and why")
    one.add_argument("--device", choices=DEVICES, help="default: the GPU of this machine")
    one.add_argument("--tags", default="tune")
    one.add_argument("--only", default="", help="only workloads with this in their names")
    one.set_defaults(run=show)
    one = commands.add_parser("check", help="validate a folder and compile all its configs for their devices")
    one.add_argument("--out", type=Path, default=store.folders()[-1], help="default: the repository's folder")
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores)")
    one.add_argument("--no-compile", action="store_true", help="schema, fingerprints and README only")
    one.set_defaults(run=check)
    one = commands.add_parser("readme", help="write a folder's README.md anew from its data")
    one.add_argument("--out", type=Path, default=store.folders()[-1], help="default: the repository's folder")
    one.set_defaults(run=readme)
    one = commands.add_parser("warm", help="generate the code of an operator's calls before their first call")
    one.add_argument("--op", required=True, help="the operator, such as sinkhorn")
    one.add_argument(
        "--device", choices=DEVICES, help="generate for this one (default: launch on the GPU here)"
    )
    one.add_argument(
        "fields", nargs="*", metavar="FIELD=VALUE[,VALUE]",
        help="what a call is: n=4 m=4 dtype=float32,bfloat16 n_iters=20 batch=8192; all combinations",
    )  # fmt: skip
    one.set_defaults(run=warm)
    one = commands.add_parser("env", help="versions, device, stored entries, generated code")
    one.set_defaults(run=environment)
    return whole


def main(words: list[str] | None = None) -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    whole = parser()
    arguments = whole.parse_args(words)
    if not hasattr(arguments, "run"):
        whole.print_help()
        return 0
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
