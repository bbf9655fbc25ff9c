"""Test every kernel on the device at hand: python -m ci.accuracy [--out FOLDER] [--no-inductor]

Every workload tagged `ci` is run with each kernel, its default and each committed config.  The gate
(ci/gate/gate.py) compares the results with float64 from the same inputs. ci/gate/runs.py checks the inputs,
the memory around the results, and that other runs, split batches and other positions in the batch give equal
bits.  Row and column sums and Inductor's error are recorded.  Without a GPU the CPU path is tested.  The
command writes accuracy-<device>.json for ci/compare.py, and exits with 1 if a result is wrong.
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
    """The command line; names and defaults that need torch are passed in."""
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
    parser.add_argument("--parity", action="store_true", help="workloads of peaked logits alone, whose "
                        "gradients are compared with float32 PyTorch's")  # fmt: skip
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
    # the next lines import torch, which takes seconds; --help then has all names
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
"""How many entries of each result of a call are kept, in whole matrices, to compare devices."""
LARGEST_SAMPLE = 1 << 12
"""The most entries of a matrix that is kept."""
INDUCTOR = ("mhc_one_iteration", "mhc_five_iterations", "mhc_fp32", "mhc_bf16", "log_4", "driver_8")
"""Workloads compared with torch.compile, which unrolls the iterations and takes minutes for large matrices.
"""
SAVED_EVERY = 20.0
"""Seconds between two writes of the artefact, so that a killed run leaves results."""
PARTS = 4
"""Tasks that compile a workload's programs."""
MEMORY = {
    "inside": "or scratch was written beyond its memory",
    "inputs": "was computed by a run that changed its inputs",
    "kind": "has another dtype, shape or strides than it should",
}
"""What is wrong with a result, by the check that fails."""
ROOT = Path(__file__).resolve().parents[1]


def digest(*tensors: torch.Tensor) -> str:
    joined = b"".join(bits(t.detach().cpu()).numpy().tobytes() for t in tensors)
    return hashlib.sha256(joined).hexdigest()[:16]


def marginals(result: torch.Tensor, exact: torch.Tensor) -> dict[str, dict[str, float]]:
    """The largest and the mean difference of row and column sums from the truth's sums."""
    differences = {}
    for name, axis in (("rows", -1), ("columns", -2)):
        gap = (result.cpu().double().sum(axis) - exact.sum(axis)).abs()
        differences[name] = {"largest": gap.max().item(), "mean": gap.mean().item()}
    return differences


def sample(result: torch.Tensor) -> str:
    """The bits of the first matrices."""
    count = max(1, SAMPLE_ENTRIES // result[0].numel())
    return base64.b64encode(bits(result[:count].detach().cpu()).numpy().tobytes()).decode()


def statistics(truth: Truth, result: torch.Tensor) -> dict[str, object]:
    s = truth.judge(result)
    return {**dataclasses.asdict(s), "passes": s.passes, "beyond": s.reasons}


def described(candidate: Candidate, truth: Truth, result: torch.Tensor) -> dict[str, object]:
    """The record of a candidate, from its results on the tested matrices."""
    return {
        "kernel": candidate.kernel, "of": candidate.of, "config": candidate.config,
        "source": candidate.source.removeprefix(f"{ROOT}/"), "served": candidate.served,
        **statistics(truth, result), "marginals": marginals(result, truth.exact),
        "digest": digest(result), "shape": list(result.shape[1:]), "dtype": str(result.dtype)[6:],
    }  # fmt: skip


def sampled(candidate: Candidate, result: torch.Tensor, before: list[dict[str, object]]) -> dict[str, str]:
    """The sample of a result that an artefact keeps: of the first result of a call, if its matrices are
    small.
    """
    kept = candidate.served and result[0].numel() <= LARGEST_SAMPLE
    if not kept or any("sample" in r and r["of"] == candidate.of for r in before):
        return {}
    return {"sample": sample(result)}


def recorded(
    workload, inputs: tuple[torch.Tensor, ...], truth: dict[str, Truth], results: list[dict[str, object]]
) -> dict[str, object]:
    """A workload's record: its results, and the results of models of vendors' arithmetic."""
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
    """Results whose bits depend on the config although a token must have the same bits in any batch."""
    digests: dict[tuple[str, str], set[object]] = {}
    for r in results:
        if r["of"] in operator.same_bits:
            digests.setdefault((r["kernel"], r["of"]), set()).add(r["digest"])
    return [f"{kernel}: {of}" for (kernel, of), distinct in sorted(digests.items()) if len(distinct) > 1]


def given(
    name: str, device: str, steps: int, large: bool = False
) -> tuple[Any, tuple[torch.Tensor, ...], list[torch.Tensor]]:
    """(workload, the tested inputs, the inputs of its batch on the device)."""
    workload = WORKLOADS[name]
    inputs = operator_of(workload).inputs(workload, steps)
    return workload, inputs, [filled(t, elements(workload, large)).to(device) for t in inputs]


def shows(workload, of: str) -> bool:
    """Whether a result is tested; if another result is unused, only gradients are."""
    return not getattr(workload, "unused", "") or of.split()[-1].startswith("d")


def judge(name: str, device: str, steps: int, large: bool = False) -> dict[str, object]:
    """A workload's record without Inductor; large: with a batch of more than 65,535 programs."""
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
    """The record of one candidate, which is run repeatedly on the tested matrices."""
    # so that a candidate that writes to its inputs does not change the others' inputs
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

    Triton has different programs for a batch of one, for multiples of 16, for other numbers and for elements
    apart.  It keeps them on disk, so that the process that tests the workload need not compile some 30 of
    them one after another.
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
    """Tasks (name, part), each name's test (name, None) coming `ahead` parts after its last part.

    Its parts are done by then if tasks take equally long.  If all parts came first, a run that runs out of
    time would have tested nothing.
    """
    later = -(-ahead // parts) if parts else 0
    for index in range(len(names) + later):
        if index < len(names):
            yield from ((names[index], part) for part in range(parts))
        if index >= later:
            yield names[index - later], None


def attempt(task: Callable[..., dict[str, object]], *arguments) -> dict[str, object]:
    """A task's record; an exception becomes a record too, so that the other workloads still run."""
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
    """HEAD, with + if the tree differs from it; empty outside a repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain") else "")


def finished(path: Path, like: dict[str, object]) -> dict[str, dict[str, object]]:
    """The records without error in a run's artefact, if that run and `like` have the same facts."""
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
    # only an emulated device has these: findings without an expected value, and other models
    wrong = list(record.get("findings", []))
    wrong += [f"{of} has other bits with other configs" for of in record.get("bits_by_config", [])]
    for r in record["results"]:
        what = f"{r['kernel']} ({r['source'] or 'CPU'})"
        for model, s in {"": r, **{f", {model}": s for model, s in r.get("models", {}).items()}}.items():
            if not s["passes"]:
                wrong.append(
                    f"{what}{model}: {r['of']} is beyond the limit of {', '.join(s['beyond'])}: "
                    f"worst {s['worst']:.3g}, rms {s['rms']:.3g}, "
                    f"bias {s['bias']:.3g} of {s['bias_limit']:.3g}; "
                    f"element {s['index']} is {s['value']:.9g}, expected {s['expected']:.9g}"
                )
        wrong += [f"{what}: {r['of']} {MEMORY[k]}" for k, holds in r.get("memory", {}).items() if not holds]
        wrong += [
            f"{what}: {r['of']} has other bits: {k}" for k, same in r["reproducible"].items() if not same
        ]
    return wrong


def sound(r: dict[str, object]) -> bool:
    """Whether all is well with a result."""
    return r["passes"] and all((r["reproducible"] | r.get("memory", {})).values())


def rows(workloads: dict[str, dict]) -> list[dict[str, object]]:
    """A table for people: one line for each workload, result, kernel and config."""
    lines = []
    for name, record in workloads.items():
        for r in record.get("results", []):
            other = record.get("inductor", {}).get(r["of"])
            lines.append({
                "workload": name, "result": r["of"], "kernel": r["kernel"],
                "served": "yes" if r["served"] else "",
                **{k: f"{r[k]:.3f}" for k in ("worst", "z", "rms")},
                "bias (limit)": f"{r['bias']:+.3f} ({r['bias_limit']:.3f})",
                "largest relative": f"{r['largest_relative']:.1e}",
                "x PyTorch": f"{r['parity_worst']:.2f}" if r["parity_worst"] else "",
                "x Inductor": f"{r['largest_absolute'] / other['largest_absolute']:.2f}" if other else "",
                "same bits": "yes" if all(r["reproducible"].values()) else "NO",
                "verdict": "ok" if sound(r) else "WRONG",
            })  # fmt: skip
    return lines


def finished_in(
    options: argparse.Namespace, names: Sequence[str], device: str
) -> Iterator[dict[tuple[str, str], dict[str, object]]]:
    """The records (name, "judged" or "inductor") that processes have finished so far, yielded repeatedly
    until all are finished or the time is over.
    """
    until = time.monotonic() + options.seconds
    # each process takes its share of the cores, and Inductor compiles in the calling process
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
        records: dict[tuple[str, str], dict[str, object]] = {}
        saved = time.monotonic()
        while pending and time.monotonic() < until:
            next(iter(pending.values())).wait(1.0)
            records |= {key: pending.pop(key).get() for key in [*pending] if pending[key].ready()}
            if time.monotonic() > saved + SAVED_EVERY:
                yield records
                saved = time.monotonic()
        yield records


def main() -> int:
    options = make_parser(list(WORKLOADS), [w.name for w in tagged("ci", object)], JUDGED_STEPS).parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    start = time.monotonic()
    kind = "-large" if options.large else "-parity" if options.parity else ""
    if options.large:
        options.workloads = [n for n in options.workloads if n in LARGE]
    if options.parity:
        options.workloads = [n for n in options.workloads if n.startswith("peaked_")]
    like = {
        "schema": SCHEMA, "device": hardware(device), "versions": versions(), "commit": commit(),
        "steps": options.steps,
    }  # fmt: skip
    path = options.out / f"accuracy-{like['device']['key']}{kind}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    kept = finished(path, like) if options.resume else {}
    left = [n for n in options.workloads if n not in kept]

    def written(records: dict[tuple[str, str], dict[str, object]]) -> dict[str, object]:
        seconds = round(time.monotonic() - start, 1)
        late = {"error": f"not finished after {seconds:.0f} s"}
        workloads = dict(kept)
        for n in left:
            compiled = (
                {}
                if options.no_inductor or n not in INDUCTOR
                else {"inductor": records.get((n, "inductor"), late)}
            )
            workloads[n] = {**records.get((n, "judged"), late), **compiled}
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
    for records in finished_in(options, left, device):
        artefact = written(records)
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
