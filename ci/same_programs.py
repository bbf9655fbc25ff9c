"""Stored entries after a change of shared source:
python -m ci.same_programs --base COMMIT [--only KERNEL ...] [--device D ...] [--packages FOLDERS ...]
                           [--workers N] [--restamp]

A kernel's fingerprint changes with all code that its body reaches, even if the generated code of the stored
entries stays the same to the letter.  For the files of tuning_cache/ whose fingerprint is not this tree's,
the command generates on a CPU the program of every entry in this tree and in the base commit's, and compares
what Triton compiles and how it is launched.  Each entry is generated under its own Triton, the installed one
or one in --packages, because views and helpers depend on the version; entries of other versions are counted
and left unchanged.  The exit status is 1 if a program differs, and 2 if none was compared.  With --restamp,
runs with the base commit's fingerprint whose entries are all the same get this tree's fingerprint, unless
another program of the file differs.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def make_parser(kernels=None, devices=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        prog="python -m ci.same_programs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base", required=True, metavar="COMMIT", help="whose programs the entries were of")
    parser.add_argument("--only", nargs="+", choices=kernels, default=kernels, metavar="KERNEL")
    parser.add_argument("--device", nargs="+", choices=devices, default=devices, metavar="DEVICE")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--packages", nargs="+", default=[], metavar="FOLDERS",
        help="where another Triton is: a folder, or several with : between them",
    )  # fmt: skip
    parser.add_argument("--restamp", action="store_true", help="write the new fingerprints")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

import torch
from rich.console import Console
from rich.progress import Progress

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.atomic import locked, replace
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.configs.store import Entry
from helion_sinkhorn.lab.machine.binary import Job
from helion_sinkhorn.lab.machine.presented import as_called
from helion_sinkhorn.lab.operators import KERNELS, fingerprint
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.child import first_launch
from helion_sinkhorn.runtime import generated
from helion_sinkhorn.runtime.fingerprint import without_docstrings
from helion_sinkhorn.runtime.kernel import Choice

ROOT = Path(__file__).resolve().parents[1]
PARENT = ROOT / "helion_sinkhorn" / "lab" / "parent.py"
PIECE = 24
"""The most programs of one process, which takes seconds to start and keeps what Helion traced."""
FINGERPRINTS = """
import json
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.runtime.fingerprint import fingerprint_of
print(json.dumps({name: fingerprint_of(kernel.body) for name, kernel in KERNELS.items()}))
"""
# this tree's module, since the base commit may lack it; first, because later modules read the device
GENERATE = """
import runpy, sys
runpy.run_path(sys.argv[2])["end_with_parent"]()
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.presented import present_device
device = DEVICES[sys.argv[1]]
present_device(device)
from ci.same_programs import serve
serve(device)
"""
Identity = tuple[store.Key, int, str]
Answer = Mapping[str, str]
"""The "code" and the "launch" of one entry, or the "problem"."""


@dataclass(frozen=True)
class Program:
    """The part of a program that entries of all batches share."""

    device: str
    kernel: str
    triton: str
    """The minor version of Triton that generates it."""
    key: store.Key
    config: tuple[tuple[str, Any], ...]
    variant: tuple[tuple[str, Any], ...]


Answers = dict[tuple[Program, int], Answer]
"""By program and batch."""
Versions = Mapping[str, tuple[str, ...]]
"""Minor version of Triton -> its folders, as `machine_versions.at_hand` returns them."""


@dataclass
class File:
    """The entries of tuning_cache/<device>/<kernel>.json that were tuned for another source."""

    device: str
    kernel: str
    base: str
    """The fingerprint in the base commit's tree; empty if that lacks the kernel."""
    todo: list[Entry] = field(default_factory=list)
    """Entries to compare."""
    same: list[Entry] = field(default_factory=list)
    different: list[tuple[Entry, str]] = field(default_factory=list)
    """Entries that differ, with the difference."""
    not_compared: list[tuple[Entry, str]] = field(default_factory=list)
    """Entries that could not be compared, with the reason."""
    elsewhere: list[Entry] = field(default_factory=list)
    """Entries that were not compared, because their Triton is missing."""

    def program(self, entry: Entry) -> Program:
        return Program(self.device, self.kernel, entry.triton, entry.key, entry.config, entry.variant)

    def judge(self, base: Answers, here: Answers) -> None:
        """Sort the entries to compare by the answers of both trees."""
        for entry in self.todo:
            asked = self.program(entry), entry.batch
            before, after = base[asked], here[asked]
            if "problem" in before and "problem" in after:
                self.not_compared.append((entry, f"not generated: {after['problem']}"))
            elif what := difference(before, after):
                self.different.append((entry, what))
            else:
                self.same.append(entry)


# in a process of one tree


def device_code(module: str) -> str:
    """The part of a generated module that Triton compiles: no imports, host functions, docstrings or
    comments.
    """
    tree = ast.parse(module)
    own = [s for s in tree.body if not isinstance(s, (ast.Import, ast.ImportFrom))]
    own = [s for s in own if not isinstance(s, ast.FunctionDef) or s.decorator_list]
    return numbered(ast.unparse(without_docstrings(ast.Module(own, []))))


def numbered(code: str) -> str:
    """Code with its local variables named by numbers, in the order in which they are assigned.

    Triton compiles them alike, except that it sorts by name what the branches of an `if` assign.
    """
    tree = ast.parse(code)
    for function in tree.body:
        if any(isinstance(node, ast.If) for node in ast.walk(function)):
            continue
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        assigned = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Store))
        numbers = {name: f"v_{k}" for k, name in enumerate(assigned)}
        for node in names:
            node.id = numbers.get(node.id, node.id)
    return ast.unparse(tree)


def described(value: Any) -> str:
    """The part of a launch's argument on which a binary may depend."""
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()}"
    return repr(value)


def launch_of(name: str, grid: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> str:
    """A launch of a Triton function, one line for each argument and option."""
    said = [f"{name}, grid {grid!r}", *map(described, arguments)]
    return "\n".join(said + [f"{k}={described(v)}" for k, v in sorted(options.items())])


def answer(device: Device, job: Job) -> dict[str, str]:
    """The code and the launch of one entry."""
    launches: list[str] = []

    def launcher(function, grid, *arguments, **options):
        launches.append(launch_of(function.__name__, grid, arguments, generated.PINNED | options))

    kernel, arguments = first_launch(device, job)
    with as_called(arguments) as given:
        code = generated.code_of(kernel, generated.bound(kernel, given))
        if code is None:
            raise ValueError("its code needs Helion, and other modules decide what it is")
        # revisions before runtime.adapted have nothing of that name
        adapted = getattr(generated, "adapted", lambda code, *of: code)
        where = next(a.device for a in given if isinstance(a, torch.Tensor))
        generated.load(adapted(code, kernel.kernel, where), kernel.name)(*given, _launcher=launcher)
    return {"code": device_code(code), "launch": "\n".join(launches)}


def serve(device: Device) -> None:
    """Read programs from stdin, one a line, and answer each by a line with the results of its batches."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if Path(generated.__file__).resolve().parents[2] != Path.cwd().resolve():
        raise SystemExit(f"{generated.__file__} is not of {Path.cwd()}")
    for line in sys.stdin:
        said = json.loads(line)
        choice = Choice(said["kernel"], *map(store.hashable, (said["config"], said["variant"])), "an entry")
        given: dict[int, dict[str, str]] = {}
        for batch in said["batches"]:
            try:
                call = KERNELS[choice.kernel].call.of(store.hashable(said["key"]))
                given[batch] = answer(device, Job(call, choice, batch))
            except Exception as error:  # an error of Helion is the result of this entry
                given[batch] = {"problem": f"{type(error).__name__}: {error}".strip()}
        print(json.dumps(given), file=answers, flush=True)


# the processes


def fingerprints(tree: Path) -> dict[str, str]:
    """The fingerprints of a tree by kernel."""
    path = os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", FINGERPRINTS], cwd=tree, env={**os.environ, "PYTHONPATH": path}, check=True,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def request(program: Program, batches: Iterable[int]) -> str:
    """A program as `serve` reads it."""
    fields = {name: dict(getattr(program, name)) for name in ("config", "variant")}
    return json.dumps({"kernel": program.kernel, "key": program.key, **fields, "batches": sorted(batches)})


def piece(
    tree: Path, programs: Mapping[Program, set[int]], packages: Sequence[str], done: Callable[[], None]
) -> Answers:
    """The code of some programs of one device and Triton in a tree, from a process of its own; packages: the
    folders with that Triton.
    """
    # imported here, since the base commit runs this module too and may lack the name
    from helion_sinkhorn.lab.machine.compiler import environment

    (device,) = {program.device for program in programs}
    answers: Answers = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        asked, errors = Path(folder, "asked"), Path(folder, "errors")
        asked.write_text("".join(request(*one) + "\n" for one in programs.items()))
        with asked.open() as stdin, errors.open("w") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-c", GENERATE, device, str(PARENT)], cwd=tree, stdin=stdin,
                stdout=subprocess.PIPE, stderr=stderr, text=True,
                env=environment(device, Path(folder), [*packages, str(tree)]),
            )  # fmt: skip
            with child:
                for program, line in zip(programs, child.stdout, strict=False):
                    answers |= {(program, int(batch)): given for batch, given in json.loads(line).items()}
                    done()
        if child.returncode:
            raise RuntimeError(f"a process of {tree} for {device} ended:\n{errors.read_text()[-2000:]}")
    return answers


def pieces(programs: Mapping[Program, set[int]], workers: int) -> Iterator[dict[Program, set[int]]]:
    """The programs by device and Triton, in parts so that every worker has some."""
    size = max(1, min(PIECE, -(-2 * len(programs) // workers)))
    for shared in dict.fromkeys((p.device, p.triton) for p in programs):
        own = [p for p in programs if (p.device, p.triton) == shared]
        for at in range(0, len(own), size):
            yield {p: programs[p] for p in own[at : at + size]}


def generate(
    trees: Sequence[Path], programs: Mapping[Program, set[int]], versions: Versions, workers: int
) -> list[Answers]:
    """The answers of all programs, for each tree."""

    def answered(job: tuple[int, dict[Program, set[int]]]) -> Answers:
        at, own = job
        return piece(trees[at], own, versions[next(iter(own)).triton], lambda: progress.advance(task))

    jobs = [(at, one) for one in pieces(programs, workers) for at in range(len(trees))]
    answers: list[Answers] = [{} for _ in trees]
    with Progress(console=Console(stderr=True)) as progress, ThreadPoolExecutor(workers) as pool:
        task = progress.add_task("programs", total=len(programs) * len(trees))
        for (at, _), part in zip(jobs, pool.map(answered, jobs), strict=True):
            answers[at].update(part)
    return answers


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """A commit's tree in a temporary folder, with this module in it."""
    git = "git", "-C", str(ROOT), "worktree"
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "base")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            shutil.copy(__file__, tree / "ci" / Path(__file__).name)
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


# the verdict


def difference(before: Answer, after: Answer) -> str:
    """The first lines of what changed in an entry; empty if nothing did."""
    for name in ("problem", "code", "launch"):
        old, new = (said.get(name, "").splitlines() for said in (before, after))
        if old != new:
            lines = [x for x in difflib.unified_diff(old, new, "", "", "", "", 0, "") if x[:2] != "@@"]
            return f"{name}: {' | '.join(lines[2:4])}"
    return ""


def entries(path: Path) -> dict[Identity, tuple[Entry, str]]:
    """The entries of a file, each with the fingerprint of its run; none if there is no file."""
    if not path.exists():
        return {}
    content = store.content(path)
    runs = [content["runs"][e["run"]]["fingerprint"] for e in content["entries"]]
    return {
        (entry.key, entry.batch, entry.triton): (entry, run)
        for entry, run in zip(store.entries_of(content, path), runs, strict=True)
    }


def stale(folder: Path, devices: Iterable[str], kernels: Iterable[str]) -> list[tuple[str, str]]:
    """(device, kernel) of the files with entries that were not tuned for this tree's source."""
    every = [(device, kernel) for device in devices for kernel in kernels]
    return [
        (device, kernel) for device, kernel in every
        if any(run != fingerprint(kernel) for _, run in entries(folder / device / f"{kernel}.json").values())
    ]  # fmt: skip


def matched(here: Path, before: Path, device: str, kernel: str, base: str, versions: Versions) -> File:
    """The stale entries of this tree's file `here`, with the entries of the base commit's file `before`."""
    file, old, new = File(device, kernel, base), entries(before), entries(here)
    for name, (entry, run) in new.items():
        known = old[name][0] if name in old else None
        if run == fingerprint(kernel):
            continue
        if run != base:
            file.not_compared.append((entry, f"its source {run} is not the base commit's, {base or 'none'}"))
        elif known is None:
            file.not_compared.append((entry, "not in the base commit"))
        elif (known.config, known.variant) != (entry.config, entry.variant):
            file.not_compared.append((entry, "another config or variant than in the base commit"))
        elif entry.triton not in versions:
            file.elsewhere.append(entry)
        else:
            file.todo.append(entry)
    gone = [entry for name, (entry, _) in old.items() if name not in new]
    file.not_compared += [(entry, "in the base commit only") for entry in gone]
    return file


def restamped(content: dict[str, Any], path: Path, proven: set[Entry], old: str, new: str) -> dict[str, Any]:
    """A file's content with the fingerprint `new` in runs that had `old` and whose entries are all proven."""
    own: dict[str, list[Entry]] = defaultdict(list)
    for raw, entry in zip(content["entries"], store.entries_of(content, path), strict=True):
        own[raw["run"]].append(entry)
    names, runs = {}, {}
    for name, run in content["runs"].items():
        if run["fingerprint"] == old and proven.issuperset(own[name]):
            run = {**run, "fingerprint": new}
            names[name] = writer.run_id(run)
        runs[names.get(name, name)] = run
    return {
        **content,
        "runs": {name: runs[name] for name in sorted(runs)},
        "entries": [{**e, "run": names.get(e["run"], e["run"])} for e in content["entries"]],
    }


def restamp(folder: Path, file: File) -> bool:
    """Give the proven runs of a file without a difference this tree's fingerprint; whether any got it."""
    path = folder / file.device / f"{file.kernel}.json"
    if file.different or not file.same:
        return False
    with locked(path):
        content = store.content(path)
        stamped = restamped(content, path, set(file.same), file.base, fingerprint(file.kernel))
        if stamped != content:
            replace(path, writer.text(stamped))
    return stamped != content


def report(files: Iterable[File]) -> None:
    """The table, and the details of its last two columns."""
    row = "{:8} {:32} {:>8} {:>8} {:>10} {:>13}".format
    print(row("device", "kernel", "entries", "same", "different", "not compared"))
    for file in files:
        counts = len(file.same), len(file.different), len(file.not_compared) + len(file.elsewhere)
        print(row(file.device, file.kernel, sum(counts), *counts))
    for triton, count in Counter(entry.triton for file in files for entry in file.elsewhere).items():
        print(f"not compared: {count} entries of Triton {triton}; --packages FOLDER-WITH-IT compares them")
    for title in ("different", "not compared"):
        said = Counter(
            f"{title}: {file.device} {file.kernel} {dict(entry.key)} {dict(entry.config)}: {what}"
            for file in files
            for entry, what in getattr(file, title.replace(" ", "_"))
        )
        for line, count in said.items():
            print(f"{line} ({count} entries)" if count > 1 else line)


def main() -> int:
    options = make_parser(list(KERNELS), list(DEVICES)).parse_args()
    # here, as in `piece`
    from ci.machine_versions import at_hand

    begin, folder = time.perf_counter(), ROOT / "tuning_cache"
    versions = at_hand(options.packages)
    names = stale(folder, options.device, options.only)
    if not names:
        print("every entry is of this tree's source")
        return 0
    with checked_out(options.base) as base:
        before = fingerprints(base)
        files = []
        for device, kernel in names:
            path, old = Path(device, f"{kernel}.json"), before.get(kernel, "")
            files.append(matched(folder / path, base / "tuning_cache" / path, device, kernel, old, versions))
        programs: dict[Program, set[int]] = defaultdict(set)
        for file in files:
            for entry in file.todo:
                programs[file.program(entry)].add(entry.batch)
        answers = generate([base, ROOT], programs, versions, options.workers)
    for file in files:
        file.judge(*answers)
    report(files)
    print(f"{len(programs)} programs in each tree, {time.perf_counter() - begin:.0f} s")
    for file in files if options.restamp else ():
        print(f"{file.device} {file.kernel}: {'restamped' if restamp(folder, file) else 'left unchanged'}")
    if any(file.different for file in files):
        return 1
    # of another base, or of a Triton that is missing
    return 0 if any(file.same for file in files) else 2


if __name__ == "__main__":
    sys.exit(main())
