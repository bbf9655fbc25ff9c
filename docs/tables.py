"""Tables that docs/numbers.py puts into pages: of bench.csv, of the gate's artefacts, and of support."""

from __future__ import annotations

import functools
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tomllib

from benchmarks.sinkhorn import report
from benchmarks.sinkhorn.peers import FLOOR, OURS
from ci import accuracy, compare, machine_terms
from ci.gate.markdown import table
from docs import whole_calls
from docs.kernel_times import CACHE, files
from helion_sinkhorn.configs import lookup, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS, kernel_calls, operator_for
from helion_sinkhorn.lab.tuning.groups import jsonable
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime.kernel import Choice, default_choice, in_space

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "docs" / "bench"
ACCURACY = ROOT / "docs" / "accuracy"
PASSES = report.PASSES[:2]
MISSING = "-"

# ------------------------------------------------------------------------------------- docs/bench/bench.csv


@functools.cache
def results() -> report.Results:
    return report.Results(BENCH / "bench.csv")


def report_page() -> str:
    return report.text(results())


def when() -> str:
    """Where and when bench.csv was measured."""
    run = results().all.dropna(subset=["device"]).iloc[0]
    versions = whole_calls.stack(run, "torch", "triton")
    return f"{run.device}, {run.utc[:10]}, commit {run.commit[:7]}, {versions}"


def in_a_graph(function: str, n: int, batch: int, which: str) -> Any:
    return results().one(function, n=n, batch=batch, which=which, timer="graph")


def peers() -> str:
    """Time of each function in a CUDA graph at two sizes, its memory and the error of its gradient."""
    rows = []
    for name in (OURS, *report.compared(results()), FLOOR):
        is_floor = name == FLOOR
        row: dict[str, object] = {"": f"**{name}**" if name == OURS else name}
        row["form"] = "" if is_floor else report.definition(name)
        for batch in (1 << 12, 1 << 20):
            for which in PASSES:
                record, own = (in_a_graph(of, 4, batch, which) for of in (name, OURS))
                text = MISSING if record is None else report.figure(record.us)
                if name not in (OURS, FLOOR) and record is not None:
                    text += f" ({report.times(record.us / own.us)})"
                row[f"{which}, {report.power(batch)}"] = text
        memory = "+".join(f"{b:,.0f}" for b in results().memory.get(name, {}).values())
        row["kept+scratch"] = memory or ("" if is_floor else MISSING)
        checked = results().of(name, n=4).gradient_error.dropna()
        row["error, gradient"] = f"{checked.iloc[0]:.0e}" if len(checked) and not is_floor else ""
        rows.append(row)
    return (
        f"{table(rows)}\n\n"
        f"Microseconds of a call in a CUDA graph; in brackets, the ratio to ours ({when()}).\n\n"
        "- *form*: which [definition](sinkhorn.md#definition) a package computes; the error is against "
        "float64 of the same.\n"
        "- *kept+scratch*: bytes a matrix; kept for the backward (64 are the logits), and allocated in it."
    )


def unfavourable_cells() -> str:
    """Where others are faster: a row for each package, size, pass and timer, a column for each batch."""
    slower, _ = report.faster_than_ours(results())
    cells: dict[tuple[str, int, str, str], dict[str, str]] = {}
    for _, r in slower.iterrows():
        cells.setdefault((r.function, r.n, r["pass"], report.CALLED[r.timer]), {})[r.batch] = (
            f"{r.us:.0f}, ours {r.us_own:.0f} ({r.us_own / r.us:.3g} x)"
        )
    rows = [
        {"package": name, "n": n, "pass": which, "timer": timer,
         **{f"{report.power(batch)}, us": of.get(batch, "") for batch in sorted(set(slower.batch))}}
        for (name, n, which, timer), of in cells.items()
    ]  # fmt: skip
    return f"{when()}. {report.where_others_are_faster(results())}\n\n{table(rows)}"


def headline() -> str:
    """The result in two sentences: beside a copy, and beside the nearest of the others."""
    forward, backward = (in_a_graph(OURS, 4, 1 << 20, which).x_floor for which in PASSES)
    both = report.beside_ours(results()).query("timer == 'graph'")
    nearest = both.loc[(both.us / both.us_own).idxmin()]
    return (
        f"In a CUDA graph the forward of 2^20 matrices of 4 x 4 takes {forward:.1f} times as long as a copy "
        f"of its bytes, and the backward {backward:.1f} times. The fastest of the other packages, "
        f"{nearest.function}, takes {nearest.us / nearest.us_own:.1f} times as long as this package in its "
        f"best cell ({nearest['pass']}, n = {nearest.n}, {report.power(nearest.batch)} matrices)."
    )


def sizes() -> str:
    """A call in a CUDA graph each, over a copy of the same bytes."""
    rows = []
    for n, power in ((4, 20), (8, 18), (16, 16), (32, 14), (64, 12)):
        by_pass = {which: in_a_graph(OURS, n, 1 << power, which) for which in PASSES}
        us = {f"{w}, us (x copy)": f"{report.figure(r.us)} ({r.x_floor:.2f})" for w, r in by_pass.items()}
        rows.append({"n": n, "matrices": f"2^{power}", **us})
    return f"{when()}; a call in a CUDA graph, the faster of two copies.\n\n{table(rows)}"


# ------------------------------------------------------------------------------------- docs/accuracy/*.json


@functools.cache
def artefacts() -> dict[str, Any]:
    return {path.stem: compare.load(path) for path in sorted(ACCURACY.glob("*.json"), reverse=True)}


def age(artefact: dict[str, Any]) -> str:
    """Date and commit; a + marks a tree that differed from it."""
    commit, _, changed = artefact["commit"].partition("+")
    return f"{artefact['utc'][:10]}, {commit[:7]}{'+' if '+' in artefact['commit'] else changed}"


def runs_of(artefact: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """The last run of each day under each stack that workloads come from, the newest first, and how many are
    of that day and stack."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in artefact["workloads"].values():
        run = record.get("run", artefact)
        groups.setdefault(run["utc"][:10] + str(run["versions"]), []).append(run)
    last = [(max(runs, key=lambda run: run["utc"]), len(runs)) for runs in groups.values()]
    return sorted(last, key=lambda one: one[0]["utc"], reverse=True)


def judged() -> str:
    """Each operator on each device: how near its results come to their limits, and beside Inductor's."""
    rows = []
    for device, artefact in artefacts().items():
        records: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        for name, record in artefact["workloads"].items():
            records.setdefault(operator_for(WORKLOADS[name]).name, []).append((name, record))
        for operator, workloads in records.items():
            every = [r for _, record in workloads for r in record["results"]]
            ratios = sorted(
                ratio for name, record in workloads for ratio in beside_inductor(artefact, name, record)
            )
            beside = f"{statistics.median(ratios):.2f}, {ratios[-1]:.2f}" if ratios else MISSING
            rows.append({
                "operator": f"`{operator}`", "on": device, "workloads": len(workloads), "results": len(every),
                "outside a limit": sum(not accuracy.sound(r) for r in every),
                "largest error / budget": f"{max(r['worst'] for r in every):.3f}",
                "largest rms / limit": f"{max(r['rms'] for r in every):.3f}",
                "error / Inductor's: median, largest": beside,
                "commits": ", ".join(dict.fromkeys(age(r.get("run", artefact))[12:] for _, r in workloads)),
            })  # fmt: skip
    runs = [
        f"- {device}, {count} workloads: {compare.conditions({**a, **run})}"
        for device, a in artefacts().items()
        for run, count in runs_of(a)
    ]
    return "\n\n".join([table(rows), "\n".join(runs), *filter(None, map(configs_since, artefacts()))])


def outside() -> str:
    """How many results of each device are outside their limits."""
    sentences = []
    for device, artefact in artefacts().items():
        results = [r for record in artefact["workloads"].values() for r in record["results"]]
        wrong = sum(not accuracy.sound(r) for r in results)
        sentences.append(
            f"On the {DEVICES[device].names[0]}, {wrong or 'none'} of {len(results):,} results of "
            f"{len(artefact['workloads'])} workloads {'are' if wrong > 1 else 'is'} outside its limits."
        )
    return " ".join(sentences)


def beside_inductor(artefact: dict[str, Any], name: str, record: dict[str, Any]) -> Iterator[float]:
    """A workload's largest absolute errors, divided by the errors of torch.compile's kernels on it."""
    for of, other in record.get("inductor", {}).items():
        if isinstance(other, dict) and (ours := compare.served(artefact, name, of)):
            yield ours["largest_absolute"] / other["largest_absolute"]


def configs_since(device: str) -> str:
    """How many results of calls were tested with the config that calls get today under the same Triton."""
    artefact, counts = artefacts()[device], Counter()
    for name, record in artefact["workloads"].items():
        running = store.minor(record.get("run", artefact)["versions"]["triton"])
        calls = list(kernel_calls(workload := WORKLOADS[name]))
        for result in filter(lambda result: result["served"], record["results"]):
            kernel, config = result["kernel"], result["config"]
            configs = [
                config_now(device, kernel, call, workload.batch, running)
                for call in calls_behind(calls, kernel, result["of"])
            ]
            if configs:
                counts[kernel, any(is_config(config, now) for now in configs)] += 1
    others = {kernel: count for (kernel, is_same), count in counts.items() if not is_same}
    if not counts:
        return ""
    same = f"{counts.total() - sum(others.values()):,} of {counts.total():,} results of calls"
    rest = ", ".join(f"{count} of `{kernel}`" for kernel, count in others.items())
    said = f"{DEVICES[device].names[0]}: {same} were tested with the config that calls get today"
    return f"{said}; the others are {rest}." if rest else f"{said}."


def calls_behind(calls: Sequence[tuple[str, Any]], kernel: str, of: str) -> list[Any]:
    """The calls of a kernel that may have made this result: a walk of each vector is a call of its own."""
    own = [call for name, call in calls if name == kernel]
    return [call for call in own if getattr(call, "result", "") == of] or own


def is_config(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a run tested a config; it names options of calls too, and lacks variants that came later."""
    return {k: v for k, v in then.items() if k in now}.items() <= now.items()


def config_now(device: str, kernel: str, call: Any, batch: int, running: str) -> dict[str, Any]:
    """Config and variant that look-up gives a call of a kernel under a Triton."""
    row = KERNELS[kernel]
    size = row.batch(call, batch)
    entries = (lookup.find(DEVICES[device], kernel, key, size, [CACHE], running) for key in row.keys(call))
    entry = next(filter(None, entries), None)
    choice = entry and Choice(kernel, entry.config, entry.variant, entry.source)
    if choice is None or not in_space(row, choice, call, DEVICES[device]):
        choice = default_choice(row, call, DEVICES[device])
    return jsonable((*choice.config, *choice.variant))


# ------------------------------------------------------------------------------------------------- support


def runs() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "ci" / "emulated.toml").read_text())["run"]


def evidence(operator: str, key: str) -> str:
    """How an operator's kernels are known on a device: measured | emulated | compiled."""
    device = DEVICES[key]
    ran = artefacts().get(key, {}).get("workloads", {}).values()
    if any(r["kernel"] in OPERATORS[operator].kernels for record in ran for r in record["results"]):
        return "measured"
    # ci/operators tests the implicit gradient by itself
    names = (operator, "implicit") if operator == "sinkhorn" else (operator,)
    emulated = {name for run in runs() if run["arch"] == device.arch for name in run["operator"].split(", ")}
    if emulated.intersection(names):
        return "emulated"
    return "compiled" if device.arch in {DEVICES[t].arch for t in machine_terms.TARGETS} else "default"


def known(key: str) -> str:
    """How many operators are measured, emulated or compiled on a device."""
    counts = Counter(evidence(operator, key) for operator in OPERATORS)
    return words_for(counts) if len(counts) > 1 else f"all {len(OPERATORS)} {next(iter(counts))}"


def words_for(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {word}" for word, n in counts.most_common()) or MISSING


def stored(key: str) -> Counter[str]:
    """The device's own entries by evidence: measured | ranked."""
    return Counter(store.WORDS[entry["evidence"]] for _, data in files(key) for entry in data["entries"])


def tests() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "docs" / "support.toml").read_text())["run"]


def outcome(run: dict[str, Any]) -> str:
    """A run of the tests, in words."""
    where = ", ".join(run[name] for name in ("device", "date") if name in run) or "an earlier commit"
    return f"{run['passed']} passed, {run['failed']} failed, {run['not_run']} not run ({where})"


def support_of_devices() -> str:
    rows = []
    for key, device in DEVICES.items():
        ran = sorted({run["date"] for run in tests() if run.get("device") == key})
        gate = runs_of(artefacts()[key])[0][0] if key in artefacts() else None
        relatives = [name for name in lookup.own_and_family(device)[1:] if stored(name)]
        rows.append({
            "device": f"`{key}`", "accuracy gate": age(gate) if gate else MISSING,
            "`pytest -m gpu`": ", ".join(ran) or MISSING, "operators": known(key),
            "stored configs": words_for(stored(key)),
            "others from": ", ".join(map("`{}`".format, relatives)) or MISSING,
        })  # fmt: skip
    return table(rows)


def support_of_stacks() -> str:
    """A row for each torch, Triton and Helion that something was run, timed or tested under."""
    names = "torch", "triton", "helion"
    stacks: dict[tuple[str, ...], dict[str, Any]] = {}

    def row(versions: dict[str, Any]) -> dict[str, Any]:
        of = tuple(versions[name] for name in names)
        return stacks.setdefault(of, {"tests": [], "gate": [], "entries": Counter()})

    for run in tests():
        row(run)["tests"].append(outcome(run))
    for key, artefact in artefacts().items():
        for run, count in runs_of(artefact):
            row(run["versions"])["gate"].append(f"{key}, {run['utc'][:10]}, {count} workloads")
    for path, data in files():
        for entry in data["entries"]:
            if entry["evidence"] == "measured":
                row(data["runs"][entry["run"]])["entries"][path.parent.name] += 1

    def newer(item: tuple[tuple[str, ...], Any]) -> list[list[int]]:
        return [list(map(int, re.findall(r"\d+", version))) for version in item[0]]

    return table([
        {**dict(zip(("torch", "Triton", "Helion"), of, strict=True)),
         "`pytest -m gpu`": "; ".join(r["tests"]) or MISSING,
         "accuracy gate": "; ".join(r["gate"]) or MISSING,
         "configs timed": ", ".join(f"{n} {key}" for key, n in sorted(r["entries"].items())) or MISSING}
        for of, r in sorted(stacks.items(), key=newer, reverse=True)
    ])  # fmt: skip


def support() -> str:
    return "\n\n".join(["## Devices", support_of_devices(), "## Stacks", support_of_stacks()])
