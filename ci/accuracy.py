"""Test every kernel on the device at hand: python -m ci.accuracy [--out FOLDER] [--no-inductor]

For each workload tagged `ci`, each kernel, each config committed for it and the default: the error against
float64 from the same inputs by the gate (ci/gate/gate.py); memory around its results, its inputs, and equal
bits from other runs, from split batches and at every position in the batch (ci/gate/runs.py); row and column
sums; Inductor's error on the same inputs.  Without a GPU the CPU path is tested.  Writes
accuracy-<device>.json for ci/compare.py; the exit status is the verdict.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import multiprocessing
import os
import platform
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any


def make_parser(workloads=None, usual=None, steps=None) -> argparse.ArgumentParser:
    """The command line, without the names and defaults for which torch would have to be imported."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("accuracy"), help="folder of the artefact and the table"
    )
    parser.add_argument("--workloads", nargs="+", choices=workloads, metavar="NAME", default=usual,
                        help="of the table of workloads; all tagged ci if left out")  # fmt: skip
    parser.add_argument("--large", action="store_true", help="on a GPU, batches of more than 65,535 "
                        "programs: workloads of ci/gate/batches.py alone")  # fmt: skip
    parser.add_argument("--steps", type=int, default=steps,
                        help="entries times iterations tested of a workload")  # fmt: skip
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 1), help="processes")
    parser.add_argument("--seconds", type=float, default=400, help="a kernel not tested by then is wrong; "
                        "what Inductor has not compiled by then is left out")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="keep what a run of the same commit, versions "
                        "and --steps left in --out, but its failures")  # fmt: skip
    parser.add_argument("--no-inductor", action="store_true", help="leave torch.compile out")
    return parser


if __name__ == "__main__" and not {"-h", "--help"} & {*sys.argv}:
    # what follows imports torch, which takes seconds; --help has names from there
    make_parser().parse_args()

import torch

from ci.gate import markdown as report
from ci.gate.batches import LARGE, elements, is_judged
from ci.gate.gate import Candidate, Operator, gap
from ci.gate.runs import (
    FEW,
    bits,
    elements_apart,
    filled,
    in_guarded_memory,
    is_of_the_kind,
    reproducible,
)
from ci.operators import operator_of
from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.atomic import replace
from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.truth import JUDGED_STEPS, Truth
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.workloads import WORKLOADS, tagged

SCHEMA = 1
SAMPLE_ENTRIES = 1024
"""Entries kept of each result that a call returns, in whole matrices, for gaps between devices."""
LARGEST_SAMPLE = 1 << 12
"""Entries of the largest matrix that is kept."""
INDUCTOR = ("mhc_one_iteration", "mhc_five_iterations", "mhc_fp32", "mhc_bf16", "log_4", "driver_8")
"""Workloads compared with torch.compile: it unrolls the iterations, and takes minutes for large matrices."""
SAVED_EVERY = 20.0
"""Seconds between two writes of the artefact, so that a run that is killed leaves what it had."""
PARTS = 4
"""Tasks that compile a workload's programs."""
MEMORY = {
    "inside": "or scratch was written beyond its memory",
    "inputs": "was computed by a run that changed its inputs",
    "kind": "has another dtype, shape or strides than it should",
}
"""The sentences about a result for which one of these does not hold."""
ROOT = Path(__file__).resolve().parents[1]


def digest(*tensors: torch.Tensor) -> str:
    joined = b"".join(bits(t.detach().cpu()).numpy().tobytes() for t in tensors)
    return hashlib.sha256(joined).hexdigest()[:16]


def marginals(result: torch.Tensor, exact: torch.Tensor) -> dict[str, dict[str, float]]:
    """The largest and the mean difference of row and column sums to those of the truth."""
    found = {}
    for name, axis in (("rows", -1), ("columns", -2)):
        gap = (result.cpu().double().sum(axis) - exact.sum(axis)).abs()
        found[name] = {"largest": gap.max().item(), "mean": gap.mean().item()}
    return found


def sample(result: torch.Tensor) -> str:
    """The bits of the first matrices."""
    count = max(1, SAMPLE_ENTRIES // result[0].numel())
    return base64.b64encode(bits(result[:count].detach().cpu()).numpy().tobytes()).decode()


def statistics(truth: Truth, result: torch.Tensor) -> dict[str, object]:
    s = truth.judge(result)
    return {**dataclasses.asdict(s), "passes": s.passes, "beyond": s.reasons}


def described(candidate: Candidate, truth: Truth, result: torch.Tensor) -> dict[str, object]:
    """The record of a candidate's tested matrices, however they were computed."""
    return {
        "kernel": candidate.kernel, "of": candidate.of, "config": candidate.config,
        "source": candidate.source.removeprefix(f"{ROOT}/"), "served": candidate.served,
        **statistics(truth, result), "marginals": marginals(result, truth.exact),
        "digest": digest(result), "shape": list(result.shape[1:]), "dtype": str(result.dtype)[6:],
    }  # fmt: skip


def sampled(candidate: Candidate, result: torch.Tensor, before: list[dict[str, object]]) -> dict[str, str]:
    """The sample that an artefact keeps of a result: of the first that a call returns, where matrices are
    small.
    """
    kept = candidate.served and result[0].numel() <= LARGEST_SAMPLE
    if not kept or any("sample" in r and r["of"] == candidate.of for r in before):
        return {}
    return {"sample": sample(result)}


def recorded(
    workload, inputs: tuple[torch.Tensor, ...], truth: dict[str, Truth], results: list[dict[str, object]]
) -> dict[str, object]:
    """A workload's record: its results, and those of models of vendors' arithmetic."""
    modelled = {vendor: run(workload, *inputs) for vendor, run in operator_of(workload).vendors.items()}
    return {
        "arguments": {**workload.shape, "dtype": str(workload.dtype)[6:], **workload.options},
        "batch": workload.batch, "judged": len(inputs[0]), "inputs": digest(*inputs), "results": results,
        "model": {
            vendor: {q: statistics(truth[q], r) for q, r in model.items() if q in truth}
            for vendor, model in modelled.items()
        },
        "model_gap": {q: gap(q, *(model[q] for model in modelled.values()))
                      for q in truth if all(q in model for model in modelled.values())},
        "bits_by_config": by_config(operator_of(workload), results),
    }  # fmt: skip


def by_config(operator: Operator, results: list[dict[str, object]]) -> list[str]:
    """Results whose bits depend on the config, though they may not: a token alone may have another."""
    digests: dict[tuple[str, str], set[object]] = {}
    for r in results:
        if r["of"] in operator.same_bits:
            digests.setdefault((r["kernel"], r["of"]), set()).add(r["digest"])
    return [f"{kernel}: {of}" for (kernel, of), found in sorted(digests.items()) if len(found) > 1]


def given(
    name: str, device: str, steps: int, large: bool = False
) -> tuple[Any, tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """(workload, the tested inputs, the inputs of its batch on the device)."""
    workload = WORKLOADS[name]
    inputs = operator_of(workload).inputs(workload, steps)
    return workload, inputs, [filled(t, elements(workload, large)).to(device) for t in inputs]


def shows(workload, of: str) -> bool:
    """Whether a result is tested: where another was not used, only gradients are."""
    return not getattr(workload, "unused", "") or of.split()[-1].startswith("d")


def judge(name: str, device: str, steps: int, large: bool = False) -> dict[str, object]:
    """All of a workload's record but Inductor; large: of a batch of more than 65,535 programs."""
    workload, inputs, full = given(name, device, steps, large)
    operator = operator_of(workload)
    truth = operator.truths(workload, *inputs)
    results: list[dict[str, object]] = []
    for candidate in operator.candidates(workload, *full):
        if shows(workload, candidate.of) and is_judged(operator, candidate.of, large):
            results.append(judged(candidate, full, truth[candidate.of], results))
    return {**recorded(workload, inputs, truth, results), "batch": len(full[0])}


def judged(
    candidate: Candidate, full: list[torch.Tensor], truth: Truth, before: list[dict[str, object]]
) -> dict[str, object]:
    """The record of one candidate, run on the tested matrices over and over."""
    # a candidate that writes to its inputs spoils no other's
    full = [t.clone() for t in full]
    count, batch = len(truth.exact), len(full[0])
    result, memory = in_guarded_memory(candidate, full)
    kind = is_of_the_kind(result, batch, truth.exact.shape[1:], truth.dtype)
    if result.shape != (batch, *truth.exact.shape[1:]):
        raise ValueError(f"{candidate.kernel}: {candidate.of} of shape {tuple(result.shape)} for {batch}")
    return {
        **described(candidate, truth, result[:count]),
        "memory": {**memory, "kind": kind},
        "reproducible": reproducible(candidate, full, result, count),
        **sampled(candidate, result[:count], before),
    }


def compile_part(name: str, part: int, device: str, steps: int, large: bool = False) -> dict[str, object]:
    """Run every PARTS-th of a workload's candidates once on each kind of batch that `judge` makes of it.

    A batch of one, one that 16 divides, any other and elements apart are programs of their own.  Triton keeps
    them on disk, so the process that tests the workload need not compile some 30 of them one after another.
    """
    workload, _, full = given(name, device, steps, large)
    for candidate in operator_of(workload).candidates(workload, *full)[part::PARTS]:
        for count in (None, 1, 7):
            candidate.run(*(t[:count] for t in full))
        if len(full[0]) <= FEW:
            candidate.run(*map(elements_apart, full))
    return {}


def inductor(name: str, device: str, steps: int) -> dict[str, object]:
    """The statistics of torch.compile on the specification."""
    workload = WORKLOADS[name]
    operator = operator_of(workload)
    inputs = operator.inputs(workload, steps)
    truth = operator.truths(workload, *inputs)
    results = operator.compiled(workload, *(t.to(device) for t in inputs))
    return {q: statistics(truth[q], r) for q, r in results.items()}


def in_turns(names: Sequence[str], parts: int, ahead: int) -> Iterator[tuple[str, int | None]]:
    """Tasks (name, part), with (name, None) for the test of a name `ahead` more parts later.

    By then its own parts are done, if tasks take equally long.  Were all parts compiled first, a run that its
    seconds end early would have tested nothing.
    """
    later = -(-ahead // parts) if parts else 0
    for index in range(len(names) + later):
        if index < len(names):
            yield from ((names[index], part) for part in range(parts))
        if index >= later:
            yield names[index - later], None


def attempt(task: Callable[..., dict[str, object]], *arguments) -> dict[str, object]:
    """A task's record; an exception becomes one too, so that one workload cannot take the others along."""
    try:
        return task(*arguments)
    except Exception:
        return {"error": traceback.format_exc()}


def versions() -> dict[str, str]:
    return {
        "python": platform.python_version(), "torch": torch.__version__, "numpy": version("numpy"),
        "helion": store.installed("helion") or "not installed",
        "triton": store.installed_triton() or "not installed",
        "cuda": torch.version.cuda or "", "hip": torch.version.hip or "",
    }  # fmt: skip


def commit() -> str:
    """HEAD, with + where the tree differs from it; empty outside a repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")


def finished(path: Path, like: dict[str, object]) -> dict[str, dict[str, object]]:
    """The records that a run left without an error, if the rest of its artefact is as `like` is."""
    if not path.exists():
        return {}
    before = json.loads(path.read_text())
    if any(before.get(k) != v for k, v in like.items()):
        return {}
    return {n: r for n, r in before["workloads"].items() if "error" not in {**r, **r.get("inductor", {})}}


def hardware(device: str) -> dict[str, object]:
    if device == "cpu":
        return {"key": "cpu", "vendor": "cpu", "name": platform.processor() or platform.machine()}
    from helion_sinkhorn.configs.device import current

    row = current(0)
    return {"key": row.key, "vendor": row.vendor, "arch": row.arch, "name": torch.cuda.get_device_name(0)}


def failures(record: dict[str, object]) -> list[str]:
    """What is wrong with a workload's record, in sentences."""
    if "error" in record:
        error = str(record["error"]).strip()
        # Helion shows source lines after the sentence
        return [(re.findall(r"^[\w.]+: .*", error, re.MULTILINE) or error.splitlines())[-1]]
    # of an emulated device: what checks without an expected value found, and other models of its arithmetic
    found = list(record.get("findings", []))
    found += [f"{of} has other bits with other configs" for of in record.get("bits_by_config", [])]
    for r in record["results"]:
        what = f"{r['kernel']} ({r['source'] or 'CPU'})"
        for model, s in {"": r, **{f", {model}": s for model, s in r.get("models", {}).items()}}.items():
            if not s["passes"]:
                found.append(
                    f"{what}{model}: {r['of']} is beyond the limit of {', '.join(s['beyond'])}: "
                    f"worst {s['worst']:.3g}, rms {s['rms']:.3g}, "
                    f"bias {s['bias']:.3g} of {s['bias_limit']:.3g}; "
                    f"element {s['index']} is {s['value']:.9g}, expected {s['expected']:.9g}"
                )
        found += [f"{what}: {r['of']} {MEMORY[k]}" for k, holds in r.get("memory", {}).items() if not holds]
        found += [
            f"{what}: {r['of']} has other bits: {k}" for k, same in r["reproducible"].items() if not same
        ]
    return found


def sound(r: dict[str, object]) -> bool:
    """Whether all is well with a result."""
    return r["passes"] and all((r["reproducible"] | r.get("memory", {})).values())


def rows(workloads: dict[str, dict]) -> list[dict[str, object]]:
    """The readable table: one line a workload, result and kernel with config."""
    found = []
    for name, record in workloads.items():
        for r in record.get("results", []):
            other = record.get("inductor", {}).get(r["of"])
            found.append({
                "workload": name, "result": r["of"], "kernel": r["kernel"],
                "served": "yes" if r["served"] else "",
                **{k: f"{r[k]:.3f}" for k in ("worst", "z", "rms")},
                "bias (limit)": f"{r['bias']:+.3f} ({r['bias_limit']:.3f})",
                "largest relative": f"{r['largest_relative']:.1e}",
                "x Inductor": f"{r['largest_absolute'] / other['largest_absolute']:.2f}" if other else "",
                "same bits": "yes" if all(r["reproducible"].values()) else "NO",
                "verdict": "ok" if sound(r) else "WRONG",
            })  # fmt: skip
    return found


def finished_in(
    options: argparse.Namespace, names: Sequence[str], device: str
) -> Iterator[dict[tuple[str, str], dict[str, object]]]:
    """The records (name, "judged" or "inductor") that processes have finished so far, again and again until
    all have or the seconds are over.
    """
    until = time.monotonic() + options.seconds
    # each process takes its share of the cores; Inductor compiles in the process it is called in
    os.environ["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // options.jobs))
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    with multiprocessing.get_context("spawn").Pool(options.jobs, end_with_parent) as pool:
        # the slowest first
        order = sorted(names, key=lambda n: -WORKLOADS[n].entries)
        pending = {}
        for n, part in in_turns(order, PARTS if device == "cuda" else 0, ahead=options.jobs):
            if part is None:
                judging = pool.apply_async(attempt, (judge, n, device, options.steps, options.large))
                pending[n, "judged"] = judging
            else:
                pool.apply_async(attempt, (compile_part, n, part, device, options.steps, options.large))
        for n in [] if options.no_inductor else set(names) & {*INDUCTOR}:
            pending[n, "inductor"] = pool.apply_async(attempt, (inductor, n, device, options.steps))
        found: dict[tuple[str, str], dict[str, object]] = {}
        saved = time.monotonic()
        while pending and time.monotonic() < until:
            next(iter(pending.values())).wait(1.0)
            found |= {key: pending.pop(key).get() for key in [*pending] if pending[key].ready()}
            if time.monotonic() > saved + SAVED_EVERY:
                yield found
                saved = time.monotonic()
        yield found


def main() -> int:
    options = make_parser(list(WORKLOADS), [w.name for w in tagged("ci", object)], JUDGED_STEPS).parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    if options.large:
        options.workloads = [n for n in options.workloads if n in LARGE]
    like = {
        "schema": SCHEMA, "device": hardware(device), "versions": versions(), "commit": commit(),
        "steps": options.steps,
    }  # fmt: skip
    path = options.out / f"accuracy-{like['device']['key']}{'-large' if options.large else ''}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    kept = finished(path, like) if options.resume else {}
    left = [n for n in options.workloads if n not in kept]

    def written(found: dict[tuple[str, str], dict[str, object]]) -> dict[str, object]:
        seconds = round(time.monotonic() - start, 1)
        late = {"error": f"not finished after {seconds:.0f} s"}
        workloads = dict(kept)
        for n in left:
            compiled = (
                {}
                if options.no_inductor or n not in INDUCTOR
                else {"inductor": found.get((n, "inductor"), late)}
            )
            workloads[n] = {**found.get((n, "judged"), late), **compiled}
        artefact = {
            **like,
            "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "command": writer.command("python -m ci.accuracy", sys.argv[1:]),
            "seconds": seconds, "passes": not any(map(failures, workloads.values())),
            "workloads": {n: workloads[n] for n in options.workloads},
        }  # fmt: skip
        replace(path, json.dumps(artefact, indent=1) + "\n")
        return artefact

    artefact = written({})
    for found in finished_in(options, left, device):
        artefact = written(found)
    workloads = artefact["workloads"]
    wrong = {n: sentences for n in workloads if (sentences := failures(workloads[n]))}
    table = report.table(rows(workloads))
    path.with_suffix(".md").write_text(table + "\n")
    print(table)
    for name, sentences in wrong.items():
        print(*(f"{name}: {s}" for s in sentences), sep="\n", file=sys.stderr)
    verdict = f"{len(wrong)} of {len(workloads)} workloads are wrong" if wrong else "all within their limits"
    print(f"\n{path}: {verdict}, {artefact['seconds']} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
