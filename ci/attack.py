"""Wrong implementations, tested like kernels: python -m ci.attack [--operators ...]

Each row of WRONG in operators/<operator>/wrong.py is a right implementation with one fault.  It is run like a
kernel (ci/gate/runs.py) on the first workload of `ci` where the fault shows, so that changes of memory, of
inputs and from run to run are found too.  The command prints which check found which fault, and exits with 1
if a fault is neither found nor explained in its row.
"""

from __future__ import annotations

import argparse
import functools
import sys
from dataclasses import dataclass


def make_parser(names=None) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", nargs="+", choices=names, default=names)
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

import torch

from ci import accuracy
from ci.gate import markdown as report
from ci.gate import runs
from ci.gate.batches import elements
from ci.gate.gate import Candidate
from ci.gate.wrong import Run, Wrong
from ci.operators import OPERATORS, operator_of
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged

STEPS = 1 << 14
"""Entries times iterations tested of a workload: some fifty matrices of 4 x 4."""
WRONG: dict[str, list[Wrong]] = {name: operator.wrong for name, operator in OPERATORS.items()}


@dataclass(frozen=True)
class Ground:
    """The inputs on which wrong implementations of a workload are tested."""

    workload: object
    truth: dict[str, Truth]
    full: list[torch.Tensor]


def placed(operator: str) -> list[tuple[Wrong, str]]:
    """The fault, and the workload on which it is run."""
    workloads = [w for w in tagged("ci", object) if OPERATORS[operator].takes(w)]
    return [(wrong, wrong.first(workloads)) for wrong in WRONG[operator]]


@functools.cache
def ground(name: str) -> Ground:
    workload = WORKLOADS[name]
    operator = operator_of(workload)
    inputs = operator.inputs(workload, STEPS)
    full = [runs.filled(t, elements(workload)) for t in inputs]
    return Ground(workload, operator.truths(workload, *inputs), full)


def verdicts(run: Run, on: str, of: tuple[str, ...]) -> list[str]:
    """The names of the checks that an implementation fails: statistics, runs and memory."""
    here = ground(on)
    checks = []
    for name in [name for name in here.truth if not of or name in of]:
        candidate = Candidate(
            "wrong", name, {}, "", True, lambda *inputs, name=name: run(here.workload, *inputs)[name]
        )
        r = accuracy.judged(candidate, here.full, here.truth[name], [])
        checks += [*r["beyond"], *(k for k, holds in (r["memory"] | r["reproducible"]).items() if not holds)]
    return list(dict.fromkeys(checks))


def rows(operator: str) -> list[dict[str, str]]:
    """The table: one line for each wrong implementation."""
    lines = []
    for wrong, on in placed(operator):
        by = verdicts(wrong.run, on, wrong.of)
        lines.append({
            "wrong": wrong.name, "workload": on, "result": ", ".join(wrong.of),
            "found by": ", ".join(by), "why nothing can tell": wrong.hidden,
        })  # fmt: skip
    return lines


def main() -> int:
    options = make_parser(list(WRONG)).parse_args()
    escaped = []
    for name in options.operators:
        table = rows(name)
        missed = [r["wrong"] for r in table if not (r["found by"] or r["why nothing can tell"])]
        escaped += [f"{name}: {wrong}" for wrong in missed]
        caught = sum(bool(r["found by"]) for r in table)
        print(
            f"{report.table(table)}\n\n{name}: {len(table)} wrong implementations, {caught} found\n",
            flush=True,
        )
    print(*(f"not found: {bug}" for bug in escaped), sep="\n", file=sys.stderr)
    return bool(escaped)


if __name__ == "__main__":
    sys.exit(main())
