"""Tables that docs/numbers.py puts into pages: of bench.csv, of the gate's artefacts, and of support."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import tomllib

from benchmarks.sinkhorn import report
from benchmarks.sinkhorn.peers import FLOOR, OURS
from ci import accuracy, compare, machine_terms
from ci.gate.markdown import table
from docs import whole_calls
from docs.kernel_times import CACHE, MISSING, files
from helion_sinkhorn.configs import lookup, store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS, OPERATORS, kernel_calls, operator_for, operator_of
from helion_sinkhorn.lab.tuning.groups import jsonable
from helion_sinkhorn.lab.workloads import WORKLOADS
from helion_sinkhorn.runtime.kernel import Choice, default_choice, in_space

ROOT = Path(__file__).resolve().parents[1]
BENCH = ROOT / "docs" / "bench"
ACCURACY = ROOT / "docs" / "accuracy"
PASSES = report.PASSES[:2]

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
                found, own = (in_a_graph(of, 4, batch, which) for of in (name, OURS))
                text = MISSING if found is None else report.figure(found.us)
                if name not in (OURS, FLOOR) and found is not None:
                    text += f" ({report.times(found.us / own.us)})"
                row[f"{which}, {report.power(batch)}"] = text
        memory = "+".join(f"{b:,.0f}" for b in results().memory.get(name, {}).values())
        row["kept+scratch"] = memory or ("" if is_floor else MISSING)
        checked = results().of(name, n=4).gradient_error.dropna()
        row["error, gradient"] = f"{checked.iloc[0]:.0e}" if len(checked) and not is_floor else ""
        rows.append(row)
    return (
        f"{table(rows)}\n\nMicroseconds of a call in a CUDA graph; in brackets, over ours ({when()}).\n\n"
        "- *form*: which [definition](docs/numerics.md) a package computes; the error is against float64 of "
        "the same.\n"
        "- *kept+scratch*: bytes a matrix; kept for the backward (64 are the logits), and allocated in it.\n"
        f"- {report.where_others_are_faster(results())} "
        "[Each of them](docs/performance.md#where-others-are-faster)."
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
    _, shares = report.faster_than_ours(results())
    return (
        f"In a CUDA graph another package was faster in {shares['graph']}. For 2^20 matrices of 4 x 4 the "
        f"forward takes {forward:.1f} times as long as a copy of its bytes, and the backward {backward:.1f} "
        f"times. The nearest cell of another package is that of {nearest.function}: "
        f"{nearest.us / nearest.us_own:.1f} times as long as ours ({nearest['pass']}, n = {nearest.n}, "
        f"{report.power(nearest.batch)} matrices)."
    )


def sizes() -> str:
    """A call in a CUDA graph each, over a copy of the same bytes."""
    rows = []
    for n, power in ((4, 20), (8, 18), (16, 16), (32, 14), (64, 12)):
        found = {which: in_a_graph(OURS, n, 1 << power, which) for which in PASSES}
        us = {f"{w}, us (x copy)": f"{report.figure(r.us)} ({r.x_floor:.2f})" for w, r in found.items()}
        rows.append({"n": n, "matrices": f"2^{power}", **us})
    return f"{when()}; a call in a CUDA graph, the faster of two copies.\n\n{table(rows)}"


FLOORS = (
    (4, "forward", (18, 20, 22), 1.4), (4, "backward", (18, 20, 22), 2.2),
    (8, "forward", (18, 20, 22), 2.0), (8, "backward", (18, 20, 22), 4.0),
    (16, "forward", (16, 18, 20), 3.0), (16, "backward", (16, 18, 20), 6.0),
    (32, "forward", (14,), 3.0), (32, "backward", (14,), 6.0),
    (64, "forward", (12, 14, 16), 3.0), (64, "backward", (12, 14, 16), 6.0),
)  # fmt: skip
"""(n, pass, log2 of the batches, target over a copy)."""


def aimed(
    what: str, target: str, values: list[float], met: list[bool], at: Sequence[str] = ("",)
) -> dict[str, str]:
    """A row of `targets`: met, missed, or met at some of the places."""
    verdict = "met" if all(met) else "missed"
    if any(met) and not all(met):
        verdict = "met at " + ", ".join(place for place, m in zip(at, met, strict=True) if m)
    measured = ", ".join(f"{v:.2f}" for v in values)
    return {"": what, "target": target, "measured": measured, "verdict": verdict}


def targets() -> str:
    """What was aimed at, and what bench.csv has."""
    rows = []
    for n, which, powers, most in FLOORS:
        found = [in_a_graph(OURS, n, 1 << k, which).x_floor for k in powers]
        at = [f"2^{k}" for k in powers]
        name = f"n = {n} {which}, {', '.join(at)}"
        rows.append(aimed(name, f"{most} x a copy", found, [v <= most for v in found], at))
    small = [b for b in sorted(results().of(OURS, n=4).batch.unique()) if b <= 1 << 13]
    at = list(map(report.power, small))
    for which, most in (("forward", 2.5), ("backward", 5.0)):
        found = [in_a_graph(OURS, 4, batch, which).us for batch in small]
        name = f"n = 4 {which} in a CUDA graph, {', '.join(at)}"
        rows.append(aimed(name, f"{most} us", found, [v <= most for v in found], at))
    for which, least in (("forward", 25), ("backward", 30)):
        ratio = results().ratio("torch.compile", n=4, batch=1 << 20, which=which, timer="graph")
        name = f"torch.compile over ours, n = 4, 2^20, {which}"
        rows.append(aimed(name, f"{least} x", [ratio], [ratio >= least]))
    host = results().section("host").set_index("function").us
    for layer, (beside, most) in whole_calls.GOALS.items():
        if most:
            ratio = host[layer] / host[beside]
            rows.append(
                aimed(f"host time: {layer}", f"{most:.0f} x that of {beside}", [ratio], [ratio <= most])
            )
    memory = list(results().memory[OURS].values())
    rows.append(aimed("bytes a matrix kept for backward, scratch", "64, 0", memory, [memory == [64.0, 0.0]]))
    steps = "import, forward, backward, in a [later run](first_call.md#times)"
    for caches, (code, seconds) in whole_calls.first_calls(results().timed.triton_version.iloc[0]).items():
        if most := whole_calls.FIRST_CALLS[caches]:
            name = f"first call, {caches} ({code}): {steps}"
            rows.append(aimed(name, f"{most:.0f} s in all", seconds, [sum(seconds) <= most]))
    return f"{when()}.\n\n{table(rows)}"


# ------------------------------------------------------------------------------------- docs/accuracy/*.json


@functools.cache
def artefacts() -> dict[str, Any]:
    return {path.stem: compare.load(path) for path in sorted(ACCURACY.glob("*.json"), reverse=True)}


def age(artefact: dict[str, Any]) -> str:
    """Date and commit; a + marks a tree that differed from it."""
    commit, _, changed = artefact["commit"].partition("+")
    return f"{artefact['utc'][:10]}, {commit[:7]}{'+' if '+' in artefact['commit'] else changed}"


def judged() -> str:
    """Each operator on each device: how near its results come to their limits."""
    rows = []
    for device, artefact in artefacts().items():
        found: dict[tuple[str, str], list[tuple[str, dict[str, Any]]]] = {}
        for name, record in artefact["workloads"].items():
            when = age(record.get("run", artefact))
            for result in record["results"]:
                row = operator_for(WORKLOADS[name]).name
                found.setdefault((row, when), []).append((name, result))
        for (operator, when), every in found.items():
            rows.append({
                "operator": operator, "on": device, "workloads": len({name for name, _ in every}),
                "results": len(every), "outside their limits": sum(not accuracy.sound(r) for _, r in every),
                "largest error / budget": f"{max(r['worst'] for _, r in every):.3f}",
                "largest rms / limit": f"{max(r['rms'] for _, r in every):.3f}",
                "date, commit": when,
            })  # fmt: skip
    return "\n\n".join([table(rows), *filter(None, map(configs_since, artefacts()))])


def configs_since(device: str) -> str:
    """How many results of calls were judged with the config that calls get today under the same Triton."""
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
    said = f"{DEVICES[device].names[0]}: {same} were judged with the config that calls get today"
    return f"{said}; the others are {rest}." if rest else f"{said}."


def calls_behind(calls: Sequence[tuple[str, Any]], kernel: str, of: str) -> list[Any]:
    """The calls of a kernel that may have made this result: a walk of each vector is a call of its own."""
    own = [call for name, call in calls if name == kernel]
    return [call for call in own if getattr(call, "result", "") == of] or own


def is_config(then: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether a run judged a config; it names options of calls too, and lacks variants that came later."""
    return {k: v for k, v in then.items() if k in now}.items() <= now.items()


def config_now(device: str, kernel: str, call: Any, batch: int, running: str) -> dict[str, Any]:
    """Config and variant that look-up gives a call of a kernel under a Triton."""
    row = KERNELS[kernel]
    size = row.batch(call, batch)
    found = (lookup.find(DEVICES[device], kernel, key, size, [CACHE], running) for key in row.keys(call))
    entry = next(filter(None, found), None)
    choice = entry and Choice(kernel, entry.config, entry.variant, entry.source)
    if choice is None or not in_space(row, choice, call, DEVICES[device]):
        choice = default_choice(row, call, DEVICES[device])
    return jsonable((*choice.config, *choice.variant))


def devices() -> str:
    """Every workload and result: worst and rms of each device, of Inductor there, and of modelled vendors."""
    lines = [f"- {device}: {compare.conditions(a)}, commit {age(a)}" for device, a in artefacts().items()]
    return "\n".join([*lines, "", table(compare.errors(artefacts()))])


def inductor() -> str:
    """The largest absolute errors on an H200 beside those of torch.compile's kernels of the naive loop."""
    artefact, rows = artefacts()["h200"], []
    for name, record in artefact["workloads"].items():
        for of, other in record.get("inductor", {}).items():
            ours = compare.served(artefact, name, of)
            if ours and isinstance(other, dict):
                a, b = ours["largest_absolute"], other["largest_absolute"]
                rows.append({"workload": name, "result": of, "ours": f"{a:.2e}", "Inductor": f"{b:.2e}",
                             "ratio": f"{a / b:.2f}" if b else MISSING})  # fmt: skip
    return f"{compare.conditions(artefact)}, commit {artefact['commit'][:7]}.\n\n{table(rows)}"


# -------------------------------------------------------------------------------------------- tuning_cache/


def group(kernel: str) -> str:
    """The operator of a kernel; sinkhorn's forward and its two gradients are tuned apart."""
    operator = operator_of(kernel).name
    if operator == "sinkhorn":
        gradient = "implicit gradient" if "implicit" in kernel else "exact gradient"
        operator += ", forward" if kernel == "sinkhorn_forward" else f", {gradient}"
    return operator


def entries() -> str:
    """Entries of each device and operator: how many, by which evidence, and when."""
    counted: dict[tuple[str, str, str], list[str]] = {}
    for path, data in files():
        for entry in data["entries"]:
            key = path.parent.name, group(path.stem), entry["evidence"]
            counted.setdefault(key, []).append(data["runs"][entry["run"]]["utc"][:10])
    return table([
        {"device": device, "operator": operator, "entries": len(dates),
         "evidence": {"measured": "measured", "compiled": "ranked by machine code, never run"}[evidence],
         "date": " to ".join(dict.fromkeys((min(dates), max(dates))))}
        for (device, operator, evidence), dates in sorted(counted.items())
    ])  # fmt: skip


# ------------------------------------------------------------------------------------------------- support


def runs() -> list[dict[str, Any]]:
    return tomllib.loads((ROOT / "ci" / "emulated.toml").read_text())["run"]


def emulated() -> str:
    names = {"arch": "architecture", "results": "results and configs"}
    return table([{names.get(k, k): v for k, v in run.items()} for run in runs()])


def evidence(operator: str, key: str) -> str:
    """How an operator's kernels are known on a device: measured | emulated | compiled."""
    device = DEVICES[key]
    ran = artefacts().get(key, {}).get("workloads", {}).values()
    if any(r["kernel"] in OPERATORS[operator].kernels for record in ran for r in record["results"]):
        return "measured"
    # ci/operators judges the implicit gradient by itself
    names = (operator, "implicit") if operator == "sinkhorn" else (operator,)
    emulated = {name for run in runs() if run["arch"] == device.arch for name in run["operator"].split(", ")}
    if emulated.intersection(names):
        return "emulated"
    return "compiled" if device.arch in {DEVICES[t].arch for t in machine_terms.TARGETS} else "default"


def configs(tuned: str, key: str) -> str:
    """What chooses the configs of a `group` on a device, own entries and its family's: measured | ranked |
    default.
    """
    parts = []
    for name in lookup.own_and_family(DEVICES[key]):
        counts = Counter(
            entry["evidence"]
            for path, data in files(name)
            if group(path.stem) == tuned
            for entry in data["entries"]
        )
        words = {"measured": "measured", "compiled": "ranked"}
        found = ", ".join(f"{n} {words[e]}" for e, n in sorted(counts.items(), reverse=True))
        if found:
            parts.append(found if name == key else f"{found}, of {name}")
    return "; ".join(parts) or "default"


def matrix(names: Iterable[str], cell: Callable[[str, str], str]) -> str:
    return table([
        {"operator": re.sub(r"^\w+", r"`\g<0>`", name), **{key: cell(name, key) for key in DEVICES}}
        for name in names
    ])  # fmt: skip


def support() -> str:
    names = "python", "torch", "helion", "triton"
    versions = [
        {"": device, **{name: a["versions"].get(name) or MISSING for name in names}, "date, commit": age(a)}
        for device, a in artefacts().items()
    ]
    return "\n\n".join([
        "## Are the kernels right there?", matrix(OPERATORS, evidence),
        "## Where do their configs come from?", matrix(dict.fromkeys(map(group, KERNELS)), configs),
        "## Versions that were judged", table(versions),
    ])  # fmt: skip
