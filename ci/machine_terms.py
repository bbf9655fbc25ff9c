"""Machine code of the committed kernels and configs: python -m ci.machine_terms [--all] [--write]

The command compiles, on a CPU, the default config of each kernel for four devices, for its first workload of
each dtype and form among those tagged `ci` and `implicit`.  Each program must obey machine_rules.RULES and
agree with machine_terms.txt, approximately in registers and large counts. --all compiles the default configs
of all these workloads too, and every config of tuning_cache/ for its own device, and checks only the rules.
Broken rules and differences are printed, and make the exit status 1; --write records the present programs,
and keeps numbers that still hold.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path


def make_parser(tags=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="check programs too that the file leaves out")
    parser.add_argument("--write", action="store_true", help="record what was found in machine_terms.txt")
    parser.add_argument("--new", action="store_true", help="compile only programs that the file lacks")
    parser.add_argument("--only", nargs="+", choices=tags, metavar="TAG",
                        help=f"{', '.join(tags or ())} (default all)")  # fmt: skip
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="compilers side by side")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

from ci import machine_rules
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import compile_for
from helion_sinkhorn.lab.operators import KERNELS, kernel_calls
from helion_sinkhorn.lab.tuning import check as cache
from helion_sinkhorn.lab.workloads import tagged
from helion_sinkhorn.runtime.kernel import Choice, default_choice

FILE = Path(__file__).with_suffix(".txt")
TARGETS = ("h200", "b200", "mi300x", "mi350")
"""One device of each architecture: sm_90, sm_100, gfx942, gfx950."""
REGISTERS = 8
"""How far registers may be from the recorded number: what hardware allocates at a time."""
SHARE = 10
"""A count may differ by one part in this number, so small counts are exact."""
PLAIN = re.compile(
    r"(add|sub|mul|max|min|neg|abs)\.(NaN\.)?f32(x2)?|fma\.rn\.f32(x2)?"
    r"|v_(pk_)?(add|sub|subrev|mul|fma\w*|max\w*|min\w*|ldexp)_f32"
)
"""Operations that every program has, which are not listed."""
HEAD = """\
The default config of every kernel as machine code: compiled on a CPU, not run.  `make machine`
compares, `make machine ARGS=--write` writes; docs/dev/machine_code.md says how to read this.
~ is give or take 8 registers, a tenth of a count.
"""


@dataclass
class Terms:
    """The content of machine_terms.txt. A tag is one of TARGETS."""

    versions: str = ""
    programs: dict[tuple[str, str], str] = field(default_factory=dict)
    """(program, tag and config) -> its terms."""
    operations: dict[str, set[str]] = field(default_factory=dict)
    """Floating-point operation or mode -> tags of the programs that have it."""

    def without(self, tags: Iterable[str]) -> Terms:
        """All but the parts about some tags."""
        tags = set(tags)
        kept = {k: v for k, v in self.programs.items() if k[1].split()[0] not in tags}
        operations = {k: v - tags for k, v in self.operations.items() if v - tags}
        return Terms(self.versions, kept, operations)

    def __or__(self, other: Terms) -> Terms:
        """The union with the other, and the other's versions."""
        names = self.operations.keys() | other.operations.keys()
        operations = {k: self.operations.get(k, set()) | other.operations.get(k, set()) for k in names}
        return Terms(other.versions, self.programs | other.programs, operations)


# ------------------------------------------------------------------------------------------- programs


def default_jobs(device: Device) -> list[Job]:
    """The default config of every kernel that the workloads of CI, or else a tuned one, run, each once.

    Scaled workloads are left out, since users launch these kernels at the sizes of tuned ones.
    """
    every = (*tagged("ci", object), *tagged("implicit", object))
    workloads = [workload for workload in every if "scaled" not in workload.tags]
    calls = dict.fromkeys(program for workload in workloads for program in kernel_calls(workload))
    missing = KERNELS.keys() - {kernel for kernel, _ in calls}
    tuned = (program for workload in tagged("tune", object) for program in kernel_calls(workload))
    calls |= dict.fromkeys((kernel, call) for kernel, call in tuned if kernel in missing)
    return [Job(call, default_choice(KERNELS[kernel], call, device)) for kernel, call in calls]


def sample(jobs: Iterable[Job]) -> list[Job]:
    """The first program of each kernel, dtype and form, which the file describes."""
    first: dict[tuple[str, ...], Job] = {}
    for job in jobs:
        first.setdefault((job.choice.kernel, job.call.dtype, getattr(job.call, "form", "")), job)
    return list(first.values())


def recorded_programs() -> dict[tuple[str, str], Job]:
    """The programs that the file has to describe."""
    return {key(tag, job): job for tag in TARGETS for job in sample(default_jobs(DEVICES[tag]))}


def sections() -> dict[str, tuple[str, list[Job]]]:
    """tag -> (device, programs), all of them."""
    shipped = store.folders()[-1]
    tuned = {key: jobs for key in DEVICES if (jobs := cache.jobs(shipped, key))}
    return {
        **{key: (key, default_jobs(DEVICES[key])) for key in TARGETS},
        **{f"{key}-tuned": (key, jobs) for key, jobs in tuned.items()},
    }


def key(tag: str, job: Job) -> tuple[str, str]:
    """The key of a program: the kernel and its call; the tag and the config."""
    return f"{job.choice.kernel} {job.call}", " ".join([tag, *spelled(job.choice)])


def spelled(choice: Choice) -> Iterator[str]:
    """Config and variant in words: true flags by name, false ones left out."""
    for name, value in (*choice.config, *choice.variant):
        if isinstance(value, tuple) and len(value) == 1:
            (value,) = value
        if value is not False:
            yield name if value is True else f"{name}={value}"


# ---------------------------------------------------------------------------------------------- terms


def about(name: str, value: int, slack: int, before: str) -> str:
    """ "name ~value", with the number of `before` if that still holds."""
    match = re.search(rf"(?<!\S){re.escape(name)} ~?(\d+)\b", before)
    if match and abs(int(match[1]) - value) <= slack:
        value = int(match[1])
    return f"{name} ~{value}" if slack else f"{name} {value}"


def described(binary: Binary, before: str = "") -> str:
    """The terms of a program, without zeros."""
    if not binary.compiled:
        return f"not compiled: {' '.join(' '.join(binary.problems).split())}"
    parts = [about("registers", binary.registers, REGISTERS, before)]
    if binary.spills or binary.spill_bytes:
        parts.append(f"spills {binary.spills} ({binary.spill_bytes} bytes)")
    if binary.shared:
        parts.append(f"shared {binary.shared}")
    for kind in ("load", "store"):
        widths = {int(k.split()[1]): v for k, v in binary.accesses.items() if k.startswith(kind)}
        parts.append(f"{kind} " + "+".join(f"{widths[bits]}x{bits}" for bits in sorted(widths, reverse=True)))
    special = {op: count for op, count in binary.operations.items() if not PLAIN.fullmatch(op)}
    names = ("instructions", "cross-lane", "barrier")
    for name, count in {**{k: binary.counts.get(k, 0) for k in names}, **special}.items():
        if count:
            parts.append(about(name, count, count // SHARE, before))
    return ", ".join(parts)


def terms(tag: str, binaries: Iterable[Binary], before: Terms) -> Terms:
    """The programs compiled for a tag, with the numbers of `before` where these still hold."""
    current = Terms(versions())
    for binary in binaries:
        program = key(tag, binary.job)
        current.programs[program] = described(binary, before.programs.get(program, ""))
        for name in (*binary.operations, *(f"{k}={v}" for k, v in binary.modes.items())):
            current.operations.setdefault(name, set()).add(tag)
    return current


def versions() -> str:
    """The versions that generated the code."""
    return f"helion {version('helion')}, torch {version('torch').split('+')[0]}, triton {version('triton')}"


# ----------------------------------------------------------------------------------------------- text

OPERATIONS = "Floating-point operations and modes, and who has them"


def natural(text: str) -> list[object]:
    """A key that puts n=4 before n=16."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text)]


def text(terms: Terms) -> str:
    """machine_terms.txt."""
    lines = [HEAD + f"Devices: {', '.join(f'{k} {DEVICES[k].arch}' for k in TARGETS)}.  {terms.versions}"]
    for program in sorted({program for program, _ in terms.programs}, key=natural):
        lines += ["", program]
        configs = sorted((config for p, config in terms.programs if p == program), key=natural)
        lines += [f"    {config}: {terms.programs[program, config]}" for config in configs]
    lines += ["", OPERATIONS]
    lines += [f"    {name}: {' '.join(sorted(tags))}" for name, tags in sorted(terms.operations.items())]
    return "\n".join(lines) + "\n"


def parsed(recorded: str) -> Terms:
    """The terms that `text` wrote."""
    written = Terms()
    program = ""
    for line in recorded.splitlines():
        if line.startswith("Devices: "):
            written.versions = line.split(".  ", 1)[1]
        elif line.startswith("    "):
            name, _, words = line.strip().partition(": ")
            if program == OPERATIONS:
                written.operations[name] = set(words.split())
            else:
                written.programs[program, name] = words
        else:
            program = line
    return written


def difference(recorded: Terms, current: Terms) -> str:
    """The differences of `current` from `recorded`, as a diff of their texts."""
    lines = (text(terms).splitlines(keepends=True) for terms in (recorded, current))
    return "".join(difflib.unified_diff(*lines, FILE.name, "compiled here", n=3))


def main() -> int:
    every, described_there = sections(), recorded_programs()
    parser = make_parser(list(every))
    options = parser.parse_args()
    for tag in options.only or ():
        if not (options.all or any(key(tag, job) in described_there for job in every[tag][1])):
            parser.error(f"--only {tag}: {FILE.name} has no program of it; add --all to check its own")
    only = options.only or list(every)
    recorded = parsed(FILE.read_text()) if FILE.exists() else Terms()
    current = recorded if options.new else recorded.without(only)
    broken = 0
    for tag in only:
        begin = time.monotonic()
        device, jobs = every[tag]
        wanted = jobs if options.all else [job for job in jobs if key(tag, job) in described_there]
        wanted = [job for job in wanted if key(tag, job) not in current.programs]
        if not wanted:
            continue
        binaries = compile_for(device, wanted, workers=options.workers)
        current |= terms(tag, [b for b in binaries if key(tag, b.job) in described_there], recorded)
        for binary in binaries:
            for what in machine_rules.broken(binary):
                broken += 1
                print(*key(tag, binary.job), what, sep=": ")
        print(f"{tag}: {len(wanted)} programs in {time.monotonic() - begin:.0f} s", flush=True)
    current.programs = {k: v for k, v in current.programs.items() if k in described_there}
    if options.write:
        FILE.write_text(text(current))
        return int(broken > 0)
    changes = difference(recorded, current)
    print(changes or f"{FILE.name} says the same")
    return int(broken > 0 or bool(changes))


if __name__ == "__main__":
    sys.exit(main())
