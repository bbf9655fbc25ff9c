"""The commands of `python -m helion_sinkhorn`."""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from helion_sinkhorn.arguments import ranks, refuse
from helion_sinkhorn.configs import settings, store
from helion_sinkhorn.configs.device import DEVICES, Device, current
from helion_sinkhorn.lab.machine.presented import present_device
from helion_sinkhorn.lab.tuning import selection
from helion_sinkhorn.lab.tuning.progress import Progress, duration

console = Console(soft_wrap=True, highlight=False)
TRITON = "a CPU build of torch brings none: `pip install triton` on Linux"
WHY = {
    "measured": "the fastest of those timed on the GPU that the folder names; a relative's may be used",
    "ranked": "the best by a score of machine code compiled for the device; none was run, for want of one",
    "the kernel's default": "nothing is stored for the call, or what is stored is of another source",
}
"""The meaning of the words after a config in `show`."""
UNUSABLE = "it is no folder of this user, cannot be made or written, or others may write it"


def table(title: str, names: list[str], rows: list[tuple[str, ...]]) -> None:
    """Print a table on a terminal, and elsewhere one line for each row."""
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
    """The name of the GPU of this process, which must be the device requested."""
    advice = (
        f"run this on a {asked}, or add OFFLINE=1 (--offline) to rank configs for it "
        "from machine code compiled here"
    )
    if settings.DEVICE:
        refuse(
            "tune",
            f"HELION_SINKHORN_DEVICE is {settings.DEVICE}, so times of any GPU would be stored as its own; "
            "unset it",
        )
    if not torch.cuda.is_available():
        refuse("tune", f"asked for {asked}, found no GPU; {advice}")
    index = local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    device, name = current(index), torch.cuda.get_device_name(index)
    if device.key != asked:
        refuse("tune", f"asked for {asked}, found {device.key} ({name}); {advice}")
    return name


def tune(arguments: argparse.Namespace) -> int:
    rank, world, local_rank, local_world = ranks("tune")
    need_triton("tune")
    from helion_sinkhorn.lab.tuning import deadline, plan, search
    from helion_sinkhorn.lab.tuning import tune as tuner
    from helion_sinkhorn.lab.tuning.groups import groups_of
    from helion_sinkhorn.lab.tuning.options import Options
    from helion_sinkhorn.lab.tuning.ranking import offline

    workloads = selection.workloads("tune", arguments.tags, arguments.only)
    groups = groups_of(workloads, arguments.kernel)
    if not groups:
        refuse("tune", f"none of these {len(workloads)} workloads uses {arguments.kernel}")
    if not arguments.offline:
        reported = here(arguments.device, local_rank)
    # else Helion gives this process a folder of its own, without what other processes compiled
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

    if arguments.offline:
        groups = offline.ranked_kernels(groups, say)
        if not groups:
            return 0
    evidence = "compiled" if arguments.offline else "measured"
    results, finals = [], []
    work = plan.work_left(groups, options, evidence)
    with Progress("keys", len(work), console, work=sum(work.values())) as progress:
        try:
            with deadline.raised_after(options.left):
                for line in plan.plan(groups, options, evidence):
                    say(line)
                for result in (
                    offline.tune_offline(groups, options, say=say)
                    if arguments.offline
                    else tuner.tune(groups, options, reported, say=say)
                ):
                    results.append(result)
                    # a key that another run wrote meanwhile, and no longer had, is no work of this plan
                    key = result.group.kernel, result.group.call, result.batch
                    progress.step(work.get(key, 0.0))
                if arguments.effort == "full" and not arguments.offline:
                    finals += search.search(results, options, say=say)
        except deadline.OutOfTime:
            left = len(plan.work_left(groups, options, evidence))
            spent = duration(arguments.budget)
            say(f"the budget of {spent} is spent; the same command does the {left} keys left")
    if results:
        said = "predictions from machine code; none of these was run" if arguments.offline else "microseconds"
        rows = (offline if arguments.offline else tuner).report(results)
        table(f"{arguments.device}: {said}", tuner.COLUMNS, rows)
    if finals:
        title = "faster than what is stored; to store one, put it into its kernel's space (space.py)"
        table(title, search.COLUMNS, search.report(finals))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """The config that each workload gets on a device, and where it comes from."""
    from helion_sinkhorn.lab.operators import KERNELS, kernel_calls
    from helion_sinkhorn.runtime.launch import choose

    workloads = selection.workloads("show", arguments.tags, arguments.only)
    device = DEVICES[arguments.device] if arguments.device else this_device()
    folders = [f"{folder}/" for folder in store.folders()]
    console.print(f"configs for {device.key} from {', '.join(folders)}")
    if not store.triton_minor():
        console.print(f"no Triton here, whose entries would come first; {TRITON}")
    sources = set()
    for w in workloads:
        for name, call in kernel_calls(w):
            choice = choose(KERNELS[name], call, w.batch, device)
            sources.add(choice.source)
            line = f"{w.name}: {choice}"
            for folder in folders:
                line = line.replace(folder, "")
            console.print(line)
    for word, meaning in WHY.items():
        if any(word in source for source in sources):
            console.print(f"{word}: {meaning}")
    return 0


def need_triton(command: str) -> None:
    """Refuse a command that generates code where there is no Triton."""
    if not store.triton_minor():
        refuse(command, f"needs Triton to generate code; {TRITON}")


def this_device() -> Device:
    if torch.cuda.is_available():
        return current(torch.cuda.current_device())
    refuse("show", f"no GPU here; name one with --device: {', '.join(DEVICES)}")


def check(arguments: argparse.Namespace) -> int:
    """Schema, fingerprints and README of a folder, and all its programs compiled for their devices."""
    if importlib.util.find_spec("jsonschema") is None:
        refuse("check", "needs jsonschema: `pip install jsonschema`")
    from helion_sinkhorn.lab.tuning import check as cache
    from helion_sinkhorn.lab.tuning.readme import readme as written

    begin = time.perf_counter()
    folder, page = arguments.out, arguments.out / "README.md"
    if not cache.files(folder):
        refuse("check", f"{folder} holds no tuning file; name a folder laid out like tuning_cache/")
    problems = list(cache.complaints(folder))
    # a file with something wrong may have no tables
    if not problems and page.exists() and written(folder) != page.read_text():
        problems.append(f"{page} is not what the data say: `python -m helion_sinkhorn readme` writes it anew")
    if not arguments.no_compile:
        workers = arguments.workers or len(os.sched_getaffinity(0))
        total = sum(len(cache.jobs(folder, key)) for key in DEVICES)
        with Progress("programs", total, console) as progress:
            problems += cache.miscompiled(folder, workers, say=console.print, done=progress.step)
    for line in problems:
        console.print(line)
    programs = sum(len(cache.jobs(folder, key)) for key in DEVICES)
    console.print(
        f"{len(cache.files(folder))} files, {programs} programs, {len(problems)} problems, "
        f"{duration(time.perf_counter() - begin)}"
    )
    return 1 if problems else 0


def warm(arguments: argparse.Namespace) -> int:
    """Generate the code of an operator's calls now, so that first calls need not."""
    from helion_sinkhorn.lab.tuning import warm as warming
    from helion_sinkhorn.runtime import program_cache

    need_triton("warm")
    try:
        calls = warming.workloads(arguments.op, arguments.fields)
    except ValueError as error:
        refuse("warm", str(error))
    is_here = torch.cuda.is_available() and arguments.device in (None, current(0).key)
    if not (is_here or arguments.device):
        refuse("warm", f"no GPU here; name a device with --device: {', '.join(DEVICES)}")
    if program_cache.folder() is None:
        refuse("warm", "HELION_SINKHORN_CACHE_DIR is off, so nothing is kept; name a folder by it")
    if program_cache.made_folder() is None:
        refuse(
            "warm", f"nothing can be kept in {program_cache.folder()}: {UNUSABLE}; "
            "name another folder by HELION_SINKHORN_CACHE_DIR",
        )  # fmt: skip
    if not is_here:
        # before Helion is imported, which looks at the device
        present_device(DEVICES[arguments.device])
    with Progress("calls", len(calls), console) as progress:
        for workload in calls:
            begin = time.perf_counter()
            if is_here:
                warming.launch(workload, current(0))
            else:
                warming.generate(workload, DEVICES[arguments.device])
            given = {name: getattr(workload, name) for name in warming.fields(arguments.op)}
            words = ", ".join(f"{name}={value}" for name, value in given.items())
            console.print(f"{arguments.op}  {words}  {time.perf_counter() - begin:.1f} s")
            progress.step()
    say_programs()
    if not is_here:
        console.print("Generated code is kept; Triton compiles its machine code at the first launch.")
    return 0


def say_programs() -> None:
    """Print which generated code came with the package, where more is kept, and how much."""
    from helion_sinkhorn.lab.operators import KERNELS
    from helion_sinkhorn.runtime import program_cache, shipped

    count = sum(len(shipped.programs(kernel)) for kernel in KERNELS.values())
    console.print(f"programs that came with the package for {shipped.stack()}: {count}")
    folder = program_cache.folder()
    if folder is None:
        console.print("generated code: not kept, HELION_SINKHORN_CACHE_DIR is off")
        return
    files, size = program_cache.usage()
    usable = program_cache.is_usable()
    state = "used" if usable else f"not used: {UNUSABLE}"
    console.print(f"generated code: {files} files, {size} bytes in {folder}; {state}")


def readme(arguments: argparse.Namespace) -> int:
    """Write the README of a folder from its data."""
    page = arguments.out / "README.md"
    from helion_sinkhorn.lab.tuning.readme import readme as written

    try:
        text = written(arguments.out)
    except (ValueError, KeyError, TypeError):
        refuse("readme", f"a file in {arguments.out} is damaged; `check --no-compile` says which")
    page.write_text(text)
    console.print(str(page))
    return 0


def env(arguments: argparse.Namespace) -> int:
    """Print what a bug report needs: versions, path, commit, device, and its stored configs."""
    from helion_sinkhorn.lab.operators import KERNELS
    from helion_sinkhorn.lab.tuning.provenance import of_package, versions

    for name, value in {**of_package(), **versions()}.items():
        console.print(f"{name:16}{value or '-'}")
    for index in range(torch.cuda.device_count()):
        device = current(index)
        counts = [
            f"{kernel} {len(store.read(folder, device.key, kernel))} in {folder}"
            for folder in store.folders()
            for kernel in KERNELS
        ]
        console.print(
            f"cuda:{index}          {device.key} ({torch.cuda.get_device_name(index)}); {'; '.join(counts)}"
        )
    say_programs()
    if not torch.cuda.device_count():
        console.print("no GPU: PyTorch computes on this machine")
    return 0
