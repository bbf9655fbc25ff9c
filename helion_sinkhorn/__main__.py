"""The command line: configs measured for a device, which config a call gets, and code made beforehand."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.tuning.commands import check, environment, readme, show, tune, warm
from helion_sinkhorn.tuning.selection import kernel
from helion_sinkhorn.workloads import WORKLOADS

FOLDER = "default: tuning_cache/ of the repository, or of the package where it is installed"
CHECK = (
    "Validate the files of a folder, and compile every config in them for its device, which takes no GPU "
    "but more than ten minutes on two cores. With --no-compile it takes seconds."
)
README = (
    "Write README.md of a folder of tuning files anew: its text stays, and the tables below it are made from "
    "the files. Without --out that is tuning_cache/ in a checkout of the repository, and "
    "helion_sinkhorn/tuning_cache/ among the installed packages elsewhere."
)
WARM = (
    "Generate the code of an operator's calls, so that the first call need not. On the GPU itself it is "
    "launched too, and Triton keeps its machine code."
)


def parser() -> argparse.ArgumentParser:
    tags = ", ".join(sorted({tag for w in WORKLOADS.values() for tag in w.tags}))
    tagged = f"which of the package's example calls (WORKLOADS): those with this tag, one of {tags}"
    whole = argparse.ArgumentParser(
        prog="python -m helion_sinkhorn",
        description="Find the fastest configs of the kernels on a device, see which config a call gets, "
        "and generate the code of calls before they are made. No call needs any of it.",
    )
    commands = whole.add_subparsers(metavar="command")

    def command(name: str, does: str, run: Callable[[argparse.Namespace], int], more: str = ""):
        one = commands.add_parser(name, help=does, description=more or f"{does[0].upper()}{does[1:]}.")
        one.set_defaults(run=run)
        return one

    one = command("tune", "time candidate configs on this device and store the best", tune)
    one.add_argument(
        "--device", required=True, choices=DEVICES,
        help="what to tune for; without --offline this machine must have one",
    )  # fmt: skip
    one.add_argument("--kernel", type=kernel, help="one kernel instead of all; a wrong name lists them")
    one.add_argument("--tags", default="tune", help=f"{tagged} (default: tune)")
    one.add_argument("--only", default="", help="only workloads with this in their names, such as _4x4_fp32_")
    one.add_argument(
        "--effort",
        choices=["quick", "full"],
        default="quick",
        help="quick (default) compares the best candidates in 7 rounds; full takes 21, and then searches "
        "Helion's own space of configs for faster ones, which it prints and does not store",
    )
    one.add_argument(
        "--budget",
        type=float,
        default=float("inf"),
        help="seconds the whole command may take (default: any)",
    )
    one.add_argument("--force", action="store_true", help="tune keys again that have a current entry")
    one.add_argument(
        "--offline", action="store_true", help="without that GPU: rank machine code compiled for the device"
    )
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=f"where to store; {FOLDER}")
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores of this rank)")
    one.add_argument("--commit", default="", help="the commit to record where git cannot tell it")
    one = command("show", "which config each workload gets on a device, and why", show)
    one.add_argument("--device", choices=DEVICES, help="default: the GPU of this machine")
    one.add_argument("--tags", default="tune", help=f"{tagged} (default: tune)")
    one.add_argument("--only", default="", help="only workloads with this in their names, such as _4x4_fp32_")
    one = command("check", "validate a folder of configs and compile all of them", check, CHECK)
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=FOLDER)
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores)")
    one.add_argument(
        "--no-compile", action="store_true", help="schema, fingerprints and README only, in seconds"
    )
    one = command("readme", "write a folder's README.md anew from its data", readme, README)
    one.add_argument("--out", type=Path, default=store.folders()[-1], help=FOLDER)
    one = command("warm", "generate the code of an operator's calls before their first call", warm, WARM)
    one.add_argument("--op", required=True, help="the operator, such as sinkhorn; a wrong name lists them")
    one.add_argument(
        "--device", choices=DEVICES, help="generate for this one (default: launch on the GPU here)"
    )
    one.add_argument(
        "fields", nargs="*", metavar="FIELD=VALUE[,VALUE]",
        help="what a call is: n=4 m=4 dtype=float32,bfloat16 n_iters=20 batch=8192; several values make all "
        "combinations; a wrong field lists the operator's; one left out is as in its first workload",
    )  # fmt: skip
    command("env", "versions, device, stored entries, generated code", environment)
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
