"""python -m helion_sinkhorn: tune, show, check, env."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES, current
from helion_sinkhorn.workloads import tagged

console = Console(soft_wrap=True, highlight=False)


def table(title: str, names: list[str], rows: list[tuple[str, ...]]) -> None:
    shown = Table(title=title)
    for name in names:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def here(asked: str) -> str:
    """The name of the GPU of this process, which must be the device asked for."""
    advice = (
        f"run this on a {asked}, or add OFFLINE=1 (--offline) to rank configs for it "
        "from machine code compiled here"
    )
    if not torch.cuda.is_available():
        raise SystemExit(f"tune: asked for {asked}, found no GPU; {advice}.")
    index = int(os.environ.get("LOCAL_RANK", "0"))
    torch.cuda.set_device(index)
    found, name = current(index), torch.cuda.get_device_name(index)
    if found.key != asked:
        raise SystemExit(f"tune: asked for {asked}, found {found.key} ({name}); {advice}.")
    return name


def tune(arguments: argparse.Namespace) -> int:
    if not arguments.offline:
        reported = here(arguments.device)
    # importing these imports Helion, which looks at the device
    from helion_sinkhorn import tune as tuner

    workloads = [w for w in tagged(arguments.tags) if arguments.only in w.name]
    groups = tuner.groups_of(workloads, arguments.kernel)
    if not groups:
        raise SystemExit(
            f"tune: no workload has tag {arguments.tags!r}, {arguments.only!r} in its name "
            f"and kernel {arguments.kernel or 'any'}."
        )
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    options = tuner.Options(
        device=arguments.device, out=arguments.out, kernel=arguments.kernel, effort=arguments.effort,
        budget=arguments.budget, limit=arguments.limit, force=arguments.force, commit=arguments.commit,
        workers=arguments.workers or max(1, len(os.sched_getaffinity(0)) // ranks - 1),
        cache=Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache"),
    )  # fmt: skip
    mark = f"rank {options.rank}: " if options.world > 1 else ""

    def say(line: str) -> None:
        console.print(f"{mark}{line}")

    for line in tuner.plan(groups, options):
        say(line)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    results = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("keys", total=tuner.keys_left(groups, options))
        for result in tuner.tune(groups, options, reported, say=say):
            results.append(result)
            progress.advance(task)
    table(
        f"{arguments.device}: microseconds",
        ["key", "batch", "old", "new", "default", "x default"],
        tuner.report(results),
    )
    return 0


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m helion_sinkhorn", description=__doc__)
    commands = whole.add_subparsers(required=True, metavar="command")
    one = commands.add_parser("tune", help="time candidate configs on this device and store the best")
    one.add_argument("--device", required=True, choices=DEVICES, help="what this machine must be")
    one.add_argument("--kernel", help="one kernel instead of all")
    one.add_argument("--tags", default="tune", help="which WORKLOADS (default: tune)")
    one.add_argument("--only", default="", help="only workloads with this in their names, such as _4x4_fp32_")
    one.add_argument("--effort", choices=["quick", "full"], default="quick")
    one.add_argument("--budget", type=float, default=60.0, help="seconds for the candidates of one key")
    one.add_argument("--limit", type=float, default=float("inf"), help="begin no key after this many seconds")
    one.add_argument("--force", action="store_true", help="tune keys again that have a fresh entry")
    one.add_argument(
        "--offline", action="store_true", help="no GPU: rank machine code compiled for the device"
    )
    one.add_argument("--out", type=Path, default=store.folders()[-1], help="default: the repository's folder")
    one.add_argument("--workers", type=int, help="compiling processes (default: the cores of this rank)")
    one.add_argument("--commit", default="", help="recorded where git cannot tell")
    one.set_defaults(run=tune)
    return whole


def main() -> int:
    # the compiling processes set it too, and Triton's cache tells binaries apart by it
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    arguments = parser().parse_args()
    return arguments.run(arguments)


if __name__ == "__main__":
    sys.exit(main())
