"""Wrong kernels written as bugs look, judged by all that judges a kernel: python -m ci.attack [--write FILE]

A bug is a row of BUGS in operators/<operator>/attack.py: a right implementation with one thing wrong, on a
workload of `ci` on which that shows.  It is run as a kernel is (ci/gate/runs.py), so that what it does to
memory, to its inputs and from run to run counts.  Prints a table of who found what; a bug that nothing finds,
without a reason in its row, makes the exit status 1.
"""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import dataclass
from pathlib import Path


def make_parser(names=None) -> argparse.ArgumentParser:
    """Without the names and defaults that an import of torch brings, of flags and numbers alone."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", nargs="+", choices=names, default=names)
    parser.add_argument("--write", type=Path, help="put the tables between the marks of this file")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import torch

from ci import accuracy
from ci.gate import gate, runs
from ci.gate import markdown as report
from ci.gate.batches import elements
from ci.gate.bugs import Bug
from ci.operators import OPERATORS, operator_of
from helion_sinkhorn.workloads import WORKLOADS

STEPS = 1 << 14
"""Entries times iterations judged of a workload: some fifty matrices of 4 x 4."""
BUGS: dict[str, list[Bug]] = {name: operator.bugs for name, operator in OPERATORS.items()}
RIGHT: dict[str, gate.Run] = {name: operator.right for name, operator in OPERATORS.items()}
"""What they are planted in."""


@dataclass(frozen=True)
class Ground:
    """What a workload's bugs are judged on."""

    workload: object
    truth: dict[str, gate.Truth]
    full: list[torch.Tensor]


@functools.cache
def ground(name: str) -> Ground:
    workload = WORKLOADS[name]
    operator = operator_of(workload)
    inputs = operator.inputs(workload, STEPS)
    full = [runs.filled(t, elements(workload)) for t in inputs]
    return Ground(workload, operator.truths(workload, *inputs), full)


def verdicts(run: gate.Run, on: str, of: tuple[str, ...]) -> list[str]:
    """What the gate has against an implementation: statistics, runs and memory, by name."""
    here = ground(on)
    found = []
    for name in of:
        candidate = gate.Candidate(
            "bug", name, {}, "", True, lambda *inputs, name=name: run(here.workload, *inputs)[name]
        )
        r = accuracy.judged(candidate, here.full, here.truth[name], [])
        found += [*r["beyond"], *(k for k, holds in (r["memory"] | r["reproducible"]).items() if not holds)]
    return list(dict.fromkeys(found))


def rows(bugs: list[Bug]) -> list[dict[str, str]]:
    """The table: one line a bug."""
    found = []
    for bug in bugs:
        by = verdicts(bug.run, bug.on, bug.of)
        found.append({
            "bug": bug.name, "workload": bug.on, "result": ", ".join(bug.of),
            "found by": ", ".join(by), "why nothing can tell": bug.hidden,
        })  # fmt: skip
    return found


def main() -> int:
    options = make_parser(list(BUGS)).parse_args()
    escaped = []
    for name in options.operators:
        table = rows(BUGS[name])
        missed = [r["bug"] for r in table if not (r["found by"] or r["why nothing can tell"])]
        escaped += [f"{name}: {bug}" for bug in missed]
        caught = sum(bool(r["found by"]) for r in table)
        text = report.table(table)
        print(f"{text}\n\n{name}: {len(table)} bugs, {caught} found\n", flush=True)
        if options.write:
            report.insert(options.write, f"attack: {name}", text)
    print(*(f"not found: {bug}" for bug in escaped), sep="\n", file=sys.stderr)
    return bool(escaped)


if __name__ == "__main__":
    sys.exit(main())
