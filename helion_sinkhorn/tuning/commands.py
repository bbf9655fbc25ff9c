"""The commands of `python -m helion_sinkhorn`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.machine.presented import present_device
from helion_sinkhorn.tuning import selection

console = Console(soft_wrap=True, highlight=False)
TRITON = "a CPU build of torch brings none: `pip install triton` on Linux"
UNUSABLE = "it is no folder of this user, cannot be made or written, or others may write it"


def table(title: str, names: list[str], rows: list[tuple[str, ...]]) -> None:
    """On a terminal as a table, elsewhere a line a row."""
    if not console.is_terminal:
        for row in [(title,), tuple(names), *rows]:
            console.print("\t".join(row))
        return
    shown = Table(title=title)
    for name in names:
        shown.add_column(name)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


def here(asked: str, local_rank: int) -> str:
    """The name of the GPU of this process, which must be the device asked for."""
    advice = (
        f"run this on a {asked}, or add OFFLINE=1 (--offline) to rank configs for it "
        "from machine code compiled here"
    )
    if settings.DEVICE:
        selection.refuse(
            "tune",
            f"HELION_SINKHORN_DEVICE is {settings.DEVICE}, so times of any GPU would be stored as its own; "
            "unset it",
        )
    if not torch.cuda.is_available():
        selection.refuse("tune", f"asked for {asked}, found no GPU; {advice}")
    index = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    found, name = current(index), torch.cuda.get_device_name(index)
    if found.key != asked:
        selection.refuse("tune", f"asked for {asked}, found {found.key} ({name}); {advice}")
    return name


def tune(arguments: argparse.Namespace) -> int:
    selection.check_seconds("tune", "--budget", arguments.budget)
    selection.check_workers("tune", arguments.workers)
    if arguments.out.exists():
        selection.check_folder("tune", arguments.out)
    selection.check_writable("tune", arguments.out)
    rank, world, local_rank, local_world = selection.ranks("tune")
    need_triton("tune")
    from helion_sinkhorn.tuning import deadline, offline_run, plan, search
    from helion_sinkhorn.tuning import tune as tuner
    from helion_sinkhorn.tuning.groups import groups_of
    from helion_sinkhorn.tuning.options import Options

    workloads = selection.workloads("tune", arguments.tags, arguments.only)
    groups = groups_of(workloads, arguments.kernel)
    if not groups:
        selection.refuse("tune", f"none of these {len(workloads)} workloads uses {arguments.kernel}")
    if not arguments.offline:
        reported = here(arguments.device, local_rank)
    # said, or Helion gives this process a folder of its own, where it finds nothing of what others compiled
    cache = os.environ.get("TRITON_CACHE_DIR") or str(Path.home() / ".triton" / "cache")
    os.environ["TRITON_CACHE_DIR"] = cache
    options = Options(
        device=arguments.device, out=arguments.out, kernel=arguments.kernel, effort=arguments.effort,
        end=time.monotonic() + arguments.budget - deadline.age() - deadline.TO_END,
        force=arguments.force, commit=arguments.commit, rank=rank, world=world,
        workers=arguments.workers or max(1, len(os.sched_getaffinity(0)) // local_world - 1),
        cache=Path(cache),
    )  # fmt: skip
    mark = f"rank {options.rank}: " if options.world > 1 else ""

    def say(line: str) -> None:
        console.print(f"{mark}{line}")

    evidence = "compiled" if arguments.offline else "measured"
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    results, found = [], []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        try:
            with deadline.raised_after(options.left):
                for line in plan.plan(groups, options, evidence):
                    say(line)
                task = progress.add_task("keys", total=plan.keys_left(groups, options, evidence))
                for result in (
                    offline_run.tune_offline(groups, options, say=say)
                    if arguments.offline
                    else tuner.tune(groups, options, reported, say=say)
                ):
                    results.append(result)
                    progress.advance(task)
                if arguments.effort == "full" and not arguments.offline:
                    found += search.search(results, options, say=say)
        except deadline.OutOfTime:
            left = plan.keys_left(groups, options, evidence)
            say(f"the budget of {arguments.budget:g} s is spent; the same command does the {left} keys left")
    if results:
        said = "predictions from machine code; none of these was run" if arguments.offline else "microseconds"
        rows = (offline_run if arguments.offline else tuner).report(results)
        table(f"{arguments.device}: {said}", tuner.COLUMNS, rows)
    if found:
        title = "faster than what is stored; to store one, put it into its kernel's space (space.py)"
        table(title, search.COLUMNS, search.report(found))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """What would serve each workload on a device, and where that comes from."""
    from helion_sinkhorn.operators import KERNELS, kernel_calls
    from helion_sinkhorn.runtime.launch import choose

    workloads = selection.workloads("show", arguments.tags, arguments.only)
    device = DEVICES[arguments.device] if arguments.device else this_device()
    folders = [f"{folder}/" for folder in store.folders()]
    console.print(f"configs for {device.key} from {', '.join(folders)}")
    if not store.triton_minor():
        console.print(f"no Triton here, whose entries would come first; {TRITON}")
    for w in workloads:
        for name, call in kernel_calls(w):
            line = f"{w.name}: {choose(KERNELS[name], call, w.batch, device)}"
            for folder in folders:
                line = line.replace(folder, "")
            console.print(line)
    return 0


def need_triton(command: str) -> None:
    """Refuse a command that generates code where there is no Triton."""
    if not store.triton_minor():
        selection.refuse(command, f"needs Triton to generate code; {TRITON}")


def this_device() -> Device:
    if torch.cuda.is_available():
        return current(torch.cuda.current_device())
    selection.refuse("show", f"no GPU here; name one with --device: {', '.join(DEVICES)}")


def check(arguments: argparse.Namespace) -> int:
    """Schema, fingerprints and README of a folder, and all its programs compiled for their devices."""
    selection.check_workers("check", arguments.workers)
    selection.check_folder("check", arguments.out)
    if importlib.util.find_spec("jsonschema") is None:
        selection.refuse("check", "needs jsonschema: `pip install jsonschema`")
    from helion_sinkhorn.tuning import check as cache
    from helion_sinkhorn.tuning.readme import readme as written

    begin = time.perf_counter()
    folder, page = arguments.out, arguments.out / "README.md"
    if not cache.files(folder):
        selection.refuse("check", f"{folder} holds no tuning file; name a folder laid out like tuning_cache/")
    found = list(cache.complaints(folder))
    # of files with something wrong there may be no tables
    if not found and page.exists() and written(folder) != page.read_text():
        found.append(f"{page} is not what the data say: `python -m helion_sinkhorn readme` writes it anew")
    if not arguments.no_compile:
        workers = arguments.workers or len(os.sched_getaffinity(0))
        found += cache.miscompiled(folder, workers, say=console.print)
    for line in found:
        console.print(line)
    programs = sum(len(cache.jobs(folder, key)) for key in DEVICES)
    console.print(
        f"{len(cache.files(folder))} files, {programs} programs, {len(found)} problems, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    return 1 if found else 0


def warm(arguments: argparse.Namespace) -> int:
    """Generate the code of an operator's calls now, so that first calls need not."""
    from helion_sinkhorn.runtime import program_cache
    from helion_sinkhorn.tuning import warm as warming

    need_triton("warm")
    if arguments.op not in warming.OPERATORS:
        selection.refuse(
            "warm", f"no operator is called {arguments.op!r}; --op is one of {', '.join(warming.OPERATORS)}"
        )
    try:
        calls = warming.workloads(arguments.op, arguments.fields)
    except ValueError as error:
        selection.refuse("warm", str(error))
    is_here = torch.cuda.is_available() and arguments.device in (None, current(0).key)
    if not (is_here or arguments.device):
        selection.refuse("warm", f"no GPU here; name a device with --device: {', '.join(DEVICES)}")
    if program_cache.folder() is None:
        selection.refuse("warm", "HELION_SINKHORN_CACHE_DIR is off, so nothing is kept; name a folder by it")
    if program_cache.made_folder() is None:
        selection.refuse(
            "warm", f"nothing can be kept in {program_cache.folder()}: {UNUSABLE}; "
            "name another folder by HELION_SINKHORN_CACHE_DIR",
        )  # fmt: skip
    if not is_here:
        # before Helion is imported, which looks at the device
        present_device(DEVICES[arguments.device])
    for workload in calls:
        begin = time.perf_counter()
        if is_here:
            warming.launch(workload, current(0))
        else:
            warming.generate(workload, DEVICES[arguments.device])
        given = {name: getattr(workload, name) for name in warming.fields(arguments.op)}
        words = ", ".join(f"{name}={value}" for name, value in given.items())
        console.print(f"{arguments.op}  {words}  {time.perf_counter() - begin:.1f} s")
    say_programs()
    if not is_here:
        console.print("Generated code is kept; Triton compiles its machine code at the first launch.")
    return 0


def say_programs() -> None:
    """What generated code came with the package, where more is kept, and how much."""
    from helion_sinkhorn.runtime import program_cache, shipped

    console.print(f"programs that came with the package: {len(shipped.members())}")
    folder = program_cache.folder()
    if folder is None:
        console.print("generated code: not kept, HELION_SINKHORN_CACHE_DIR is off")
        return
    files, size = program_cache.usage()
    usable = program_cache.is_usable()
    state = "used" if usable else f"not used: {UNUSABLE}"
    console.print(f"generated code: {files} files, {size} bytes in {folder}; {state}")


def readme(arguments: argparse.Namespace) -> int:
    """Write the README of a folder anew from its data."""
    selection.check_folder("readme", arguments.out)
    page = arguments.out / "README.md"
    if not page.is_file():
        selection.refuse("readme", f"there is no {page}; write one, whose text stays above the tables")
    from helion_sinkhorn.tuning.readme import readme as written

    try:
        text = written(arguments.out)
    except (ValueError, KeyError, TypeError):
        selection.refuse("readme", f"a file in {arguments.out} is damaged; `check --no-compile` says which")
    page.write_text(text)
    console.print(str(page))
    return 0


def environment(arguments: argparse.Namespace) -> int:
    """Versions, the device and how much is stored for it."""
    from helion_sinkhorn.operators import KERNELS
    from helion_sinkhorn.tuning.provenance import versions

    for name, value in versions().items():
        console.print(f"{name:10} {value or '-'}")
    for index in range(torch.cuda.device_count()):
        device = current(index)
        counts = [
            f"{kernel} {len(store.read(folder, device.key, kernel))} in {folder}"
            for folder in store.folders()
            for kernel in KERNELS
        ]
        console.print(
            f"cuda:{index}     {device.key} ({torch.cuda.get_device_name(index)}); {'; '.join(counts)}"
        )
    say_programs()
    if not torch.cuda.device_count():
        console.print("no GPU: PyTorch computes on this machine")
    return 0
