"""Execute the AMD machine code on this CPU and test it: python -m ci.emulate [--devices ...]
[--workloads NAME[:RESULT,...] ...]

Code that Triton compiles for gfx942 and gfx950 is run instruction by instruction (ci/emulator) on the inputs
of ci/accuracy.py, and tested by the same gate.  Each result must pass under every model of what the ISA
leaves open (MODELS).  Its bits must not depend on the old contents of registers and LDS, the order of waves,
or the split of the batch.  The command writes accuracy-<device>-emulated.json for ci/compare.py, emulated and
never measured, and exits with 1 if a result is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import os
import platform
import sys
import time
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import datetime, timezone
from multiprocessing import get_context
from pathlib import Path


def make_parser(
    amd=None, usual=None, chosen=str, steps=None, models=None, cache=None
) -> argparse.ArgumentParser:
    """The command line; names and defaults that need torch are passed in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", nargs="+", choices=amd, default=usual, help="one of each architecture")
    parser.add_argument("--workloads", nargs="+", type=chosen, metavar="NAME[:RESULT,...]",
                        help="all tagged ci if left out, all results where none is named")  # fmt: skip
    parser.add_argument(
        "--steps", type=int, default=steps, help="entries times iterations tested of a workload"
    )
    parser.add_argument("--used", action="store_true", help="only the config that each call gets")
    parser.add_argument("--models", nargs="*", choices=models, default=models, metavar="MODEL",
                        help=f"beside correct rounding: {'; '.join(models or ())}")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="folder of artefacts and tables")
    parser.add_argument(
        "--cache", type=Path, default=cache, help="folder of compiled programs, by their source"
    )
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # the next lines import torch, which takes seconds; --help then has all names
    make_parser().parse_args()

import torch
from rich.progress import Progress

from ci import accuracy
from ci.emulator import launch
from ci.emulator.machine import Model, Unknown
from ci.emulator.memory import Finding
from ci.gate import markdown as report
from ci.gate.gate import Candidate
from ci.gate.runs import same
from ci.operators import OPERATORS, operator_of
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged

STEPS = 1 << 14
"""How many entries times iterations of a workload are tested: a full and a partial block of most kernels."""
DEFAULT = ("mi350", "mi300x")
PLAIN = Model()
MODELS = {
    "rounded up": Model(functions="above", products="floored"),
    "rounded down, subnormals flushed": Model(functions="below", products="floored", winner="lowest"),
    "neighbour by a hash, subnormals flushed": Model(functions="scattered", winner="lowest"),
}
"""Beside PLAIN, which rounds correctly: other results of v_rcp, v_exp, v_log and matrix units that the ISA
allows, and which lane's value remains if lanes of a wave store to one place.
"""
OTHER_STATE = Model(seed=100, order="last")
CACHE = accuracy.ROOT / ".emulated"


@dataclass(frozen=True)
class Options:
    """How workloads are tested."""

    steps: int
    used: bool
    """Whether only the config that each call gets is run; else every committed config and the default."""
    models: tuple[str, ...]
    """Names of MODELS."""
    cache: Path
    results: dict[str, frozenset[str]] = field(default_factory=dict)
    """The results that are tested, by workload; all results of a workload that is not named."""


def judge(name: str, key: str, options: Options) -> dict[str, object]:
    """A workload's record, as accuracy.judge returns it, with the statistics of each model."""
    device = launch.present(key, options.cache)  # before torch looks for a GPU
    torch.use_deterministic_algorithms(True)  # new memory holds NaN until it is written
    workload = WORKLOADS[name]
    operator = operator_of(workload)
    inputs = operator.inputs(workload, options.steps)
    truth = operator.truths(workload, *inputs)
    wanted = options.results.get(name, truth.keys())
    if unknown := wanted - truth.keys():
        raise LookupError(f"{name} has no result {', '.join(unknown)}; choose from {', '.join(truth)}")
    session = launch.Session(device, options.cache)
    begin = time.perf_counter()
    results: list[dict[str, object]] = []
    findings = []
    with launch.emulating(session):
        with launch.as_on_device():
            candidates = operator.candidates(workload, *inputs)
        for candidate in candidates:
            if candidate.of not in wanted or (options.used and not candidate.served):
                continue
            try:
                results.append(judged(session, candidate, inputs, truth[candidate.of], results, options))
            except (Unknown, Finding) as error:
                findings.append(f"{candidate.kernel} ({candidate.source}): {candidate.of}: {error}")
    return {
        **accuracy.recorded(workload, inputs, truth, results),
        "findings": findings,
        "launches": session.launches,
        "compile_seconds": round(session.compile_seconds, 1),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def judged(session, candidate: Candidate, inputs, truth, before, options: Options) -> dict[str, object]:
    """One candidate under every model."""

    def under(model: Model, *tensors: torch.Tensor) -> torch.Tensor:
        session.model = model
        return candidate.run(*tensors)

    result = under(PLAIN, *inputs)
    cut = math.ceil(len(result) / 2)
    split = [
        under(PLAIN, *(t[part] for t in inputs)) for part in (slice(cut), slice(cut, None)) if len(result) > 1
    ]
    return {
        **accuracy.described(candidate, truth, result),
        "reproducible": {
            "other state and order": same(under(OTHER_STATE, *inputs), result),
            "split": not split or same(torch.cat(split), result),
        },
        "models": {name: accuracy.statistics(truth, under(MODELS[name], *inputs)) for name in options.models},
        **accuracy.sampled(candidate, result, before),
    }


def artefact(key: str, workloads: dict[str, dict], seconds: float) -> dict[str, object]:
    """The artefact for ci/compare.py, labelled as emulated."""
    row = DEVICES[key]
    wrong = {n: sentences for n, record in workloads.items() if (sentences := accuracy.failures(record))}
    return {
        "schema": accuracy.SCHEMA,
        "device": {"key": key, "vendor": row.vendor, "arch": row.arch, "emulated": True,
                   "name": f"{row.arch} code emulated on a CPU ({platform.machine()}), never run on a GPU"},
        "versions": accuracy.versions(), "commit": accuracy.commit(),
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": writer.command("python -m ci.emulate", sys.argv[1:]),
        "seconds": round(seconds, 1), "passes": not wrong, "workloads": workloads,
    }  # fmt: skip


def emulated(
    key: str, names: list[str], options: Options, pool: Executor | None, progress: Progress
) -> dict[str, dict]:
    """The records of one device, computed in a pool or in this process, which then keeps the device."""
    task = progress.add_task(f"{key}, emulated", total=len(names))
    run = functools.partial(accuracy.attempt, judge)
    order = sorted(names, key=lambda n: -WORKLOADS[n].entries)
    pending = {pool.submit(run, name, key, options): name for name in order} if pool else {}
    finished = ((pending[done], done.result()) for done in as_completed(pending))
    records = {}
    for name, record in finished if pool else ((name, run(name, key, options)) for name in order):
        records[name] = record
        progress.update(task, advance=1, description=f"{key}, emulated: {name}")
    return {n: records[n] for n in names}


def summary(workloads: dict[str, dict]) -> list[dict[str, object]]:
    """One line for each operator: the largest statistics with correct rounding, and under any model."""
    lines: dict[str, list[dict]] = {}
    for name, record in workloads.items():
        operator = next(o for o, row in OPERATORS.items() if row.takes(WORKLOADS[name]))
        lines.setdefault(operator, []).append(record)
    return [summarised(operator, records) for operator, records in lines.items()]


def summarised(operator: str, records: list[dict]) -> dict[str, object]:
    results = [r for record in records for r in record.get("results", [])]
    under = [s for r in results for s in (r, *r["models"].values())]

    def largest(of: list[dict], what: str) -> str:
        return f"{max((s[what] for s in of), default=math.nan):.3f}"

    return {
        "operator": operator,
        "workloads": len(records),
        "results": len(results),
        "of the defaults": sum(r["source"] == "the kernel's default" for r in results),
        "programs run": sum(record.get("launches", 0) for record in records),
        "worst": largest(results, "worst"),
        "rms": largest(results, "rms"),
        "worst, any model": largest(under, "worst"),
        "rms, any model": largest(under, "rms"),
        "wrong": sum(len(accuracy.failures(record)) for record in records),
    }


def selected(text: str) -> tuple[str, frozenset[str]]:
    """A workload, and the results of it that are wanted: NAME or NAME:RESULT,..."""
    name, _, results = text.partition(":")
    if name not in (known := [w.name for w in tagged("ci", object)]):
        raise argparse.ArgumentTypeError(f"{name!r} has no tag ci; choose from {', '.join(known)}")
    return name, frozenset(filter(None, results.split(",")))


def main() -> int:
    amd = [k for k, d in DEVICES.items() if d.vendor == "amd"]
    given = make_parser(amd, DEFAULT, selected, STEPS, list(MODELS), CACHE).parse_args()
    names = dict(given.workloads or ((w.name, frozenset()) for w in tagged("ci", object)))
    options = Options(
        given.steps, given.used, tuple(given.models), given.cache.resolve(),
        {name: results for name, results in names.items() if results},
    )  # fmt: skip
    os.environ["OMP_NUM_THREADS"] = "1"
    given.out.mkdir(parents=True, exist_ok=True)
    wrong = 0
    for key in given.devices:
        begin = time.monotonic()
        alone = given.jobs == 1 and len(given.devices) == 1
        processes = min(given.jobs, len(names))
        pool = None if alone else ProcessPoolExecutor(processes, get_context("spawn"), end_with_parent)
        with pool or contextlib.nullcontext(), Progress(transient=True) as progress:
            workloads = emulated(key, list(names), options, pool, progress)
        content = artefact(key, workloads, time.monotonic() - begin)
        path = given.out / f"accuracy-{key}-emulated.json"
        path.write_text(json.dumps(content, indent=1) + "\n")
        table = report.table(accuracy.rows(workloads))
        path.with_suffix(".md").write_text(table + "\n")
        print(table, report.table(summary(workloads)), sep="\n\n")
        sentences = [f"{n}: {s}" for n, record in workloads.items() for s in accuracy.failures(record)]
        print(*sentences, sep="\n", file=sys.stderr)
        verdict = f"{len(sentences)} things are wrong" if sentences else "all within their limits"
        print(f"\n{path}: {content['device']['name']}: {verdict}, {content['seconds']} s\n")
        wrong += len(sentences)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
