"""Tables of whole calls: two operators beside others, and memory, from the CSV files of their benchmarks."""

from __future__ import annotations

import csv
import statistics
from pathlib import Path

from benchmarks.sinkhorn.peers import FLOOR, OURS
from ci.gate.markdown import table
from docs.kernel_times import SLOWER

BENCH = Path(__file__).resolve().parents[1] / "docs" / "bench"
Row = dict[str, str]


def read(name: str) -> list[Row]:
    with (BENCH / f"{name}.csv").open(newline="") as file:
        return [row for row in csv.DictReader(file) if not row.get("note")]


def stated(row: Row) -> str:
    """Where, when and with what a run was."""
    versions = stack(row, "torch", "triton", "helion")
    return f"{row['device']}, {row['utc'][:10]}, commit {row['commit']}, {versions}."


def stack(row: Row, *packages: str) -> str:
    """The versions of these packages in a run."""
    return ", ".join(f"{name} {row[f'{name}_version']}" for name in packages)


def figure(us: str | float) -> str:
    """A time with the digits that the file has."""
    return f"{float(us):,.4g}" if float(us) < 1000 else f"{float(us):,.0f}"


def grouped(rows: list[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """The rows by their values in these columns, in the order of the file."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def dot_compress() -> str:
    """us in a CUDA graph over a copy, of queued and of single calls, for each batch and pass."""
    rows = read("dot_compress")
    names = list(dict.fromkeys(row["function"] for row in rows))
    graphs, queued, singles = [], [], []
    for (batch, which), some in grouped(rows, "batch", "pass").items():
        place, found = {"B": batch, "pass": which}, {row["function"]: row for row in some}
        us = {name: float(row["us_graph"]) for name, row in found.items()}
        over = {name: f"{figure(t)}, {t / us[FLOOR]:.2f} x" for name, t in us.items()}
        over[FLOOR] = figure(us[FLOOR])
        graphs.append({**place, **{name: over.get(name, "") for name in names}})
        for lines, column in ((queued, "us_queued"), (singles, "us")):
            called = {n: figure(r[column]) for n, r in found.items() if r[column] and n != FLOOR}
            lines.append({**place, **called})
    return (
        f"{stated(rows[0])} us of one replay of a CUDA graph, and the ratio to a copy of the bytes that "
        f"moving every tensor once makes:\n\n{table(graphs)}\n\nCalled eagerly, with calls that the host has "
        f"queued ahead of the device, as in training:\n\n{table(queued)}\n\nA single call for which the "
        f"device waits takes longer, because it is idle during the launches and autograd:\n\n{table(singles)}"
    )


def linear_attention() -> str:
    """us of forward and backward, called one by one and in graphs, and the errors."""
    rows = read("linear_attention")
    lines = [
        {
            "": name if name.startswith("fla ") else f"**{name}**",
            **{
                f"{row['pass']}, {how}": figure(row[column])
                for how, column in (("called", "us"), ("in a graph", "us_graph"))
                for row in passes
            },
            "errors of o, dq, dk, dv, dgk": passes[0]["errors"],
        }
        for (name,), passes in grouped(rows, "function").items()
    ]
    return f"{stated(rows[0])}\n\n{table(lines)}"


def recomputed() -> str:
    """Memory of a stack of mHC sites for several k of recompute_streams."""
    rows = read("recompute")
    first = rows[0]
    size = 2 * int(first["hidden"])
    lines = [
        {
            "every": row["every"], "held behind the forward": f"{int(row['held']) / size:,.0f} S",
            "at most, in the backward": f"{int(row['peak']) / size:,.0f} S",
            "of every = 1": f"{int(row['peak']) / int(first['peak']):.2f}",
        }
        for row in rows
    ]  # fmt: skip
    return (
        f"{stated(first)} {first['updates']} updates of 4 streams of {first['hidden']} in {first['dtype']}, "
        f"{first['tokens']} tokens. Bytes a token, in units of one stream (S = {size}).\n\n{table(lines)}"
    )


def model_step() -> str:
    """A step of a model of transformers with and without `patch`; nothing until it was measured."""
    if not (BENCH / "model_step.csv").exists():
        return ""
    rows = read("model_step")
    names = {"original": "transformers", "patched": f"patched with {OURS}"}
    lines = [
        {"": names[row["model"]], "ms a step": row["ms"], "peak of a step, MiB": f"{int(row['peak_mib']):,}"}
        for row in rows
    ]
    of = f"a DeepseekV4 of transformers {rows[0]['transformers_version']}"
    return (
        f"**A model's step**, forward and backward: {of} with 2 layers of hidden size 2048 and 4 streams, "
        f"4096 tokens in bfloat16 ({stated(rows[0])[:-1]}):\n\n{table(lines)}"
    )


FORMS = {OURS: "deepseek", f"{OURS} log": "log"}
PLACE = "function", "n", "batch", "dtype", "pass", "triton_version"


def triton(name: str) -> str:
    """us of `sinkhorn` under each Triton, and the ratio to a copy in the same run, from a file."""
    rows = [r for r in read(name) if r["section"] == "sweep" and r["pass"] != "both"]
    versions = sorted({r["triton_version"] for r in rows})
    # a copy of a large tensor takes longer in a graph: both are of the faster of the two timers
    best = {place: min(float(r["us"]) for r in some) for place, some in grouped(rows, *PLACE).items()}
    sizes = dict.fromkeys(place[:4] for place in best if place[0] in FORMS)

    def cell(function: str, *at: str) -> str:
        us = best.get((function, *at))
        return "-" if us is None else f"{figure(us)} ({us / best[(FLOOR, *at)]:.2f})"

    lines = [
        {
            "n": size[1], "matrices": int(size[2]), "dtype": size[3], "form": FORMS[size[0]],
            **{f"{which}, {v}": cell(*size, which, v) for which in ("forward", "backward") for v in versions},
        }
        for size in sorted(sizes, key=lambda size: (size[0], size[3] != "float32"))
    ]  # fmt: skip
    said = " ".join(slower_calls(best, version, versions[-1]) for version in versions[:-1])
    return f"{of_versions(rows)}; T = 20, us (over a copy of as many bytes). {said}\n\n{table(lines)}"


def slower_calls(best: dict[tuple[str, ...], float], old: str, new: str) -> str:
    """In how many calls each of two Tritons takes more than SLOWER times as long as the other."""
    ratios = {
        place[:-1]: us / best[(*place[:-1], old)]
        for place, us in best.items()
        if place[-1] == new and place[0] in FORMS and (*place[:-1], old) in best
    }
    over = [
        f"{FORMS[function]} {n} x {n} {dtype}, {int(batch):,} matrices, {which} ({ratio:.2f})"
        for (function, n, batch, dtype, which), ratio in ratios.items()
        if ratio > SLOWER
    ]
    named = f": {'; '.join(over)}" if over else ""
    return (
        f"Of {len(ratios)} calls under {old} and {new}, {new} takes more than {SLOWER} times as long in "
        f"{len(over)}{named}, and {old} in {sum(r < 1 / SLOWER for r in ratios.values())}; the median of "
        f"{new} / {old} is {statistics.median(ratios.values()):.2f}."
    )


def of_versions(rows: list[Row]) -> str:
    """Device and torch of runs under several Tritons, and of which day and commit each of them is."""
    runs = {r["triton_version"]: f"{r['utc'][:10]}, commit {r['commit'][:7]}" for r in rows}
    said = "; ".join(f"Triton {version}: {run}" for version, run in sorted(runs.items()))
    return f"{rows[0]['device']}, torch {rows[0]['torch_version']}; {said}"


GOALS = {
    "sinkhorn, no gradient": ("x * 2", 3.0),
    "sinkhorn, with gradient": ("x * 2, with gradient", 3.0),
    "torch.ops, forward": ("x * 2", 2.0),
    "backward through autograd": ("backward of x * 2 through autograd", None),
}
"""Layers of a call of 128 matrices: what each is compared with, and how many times that was aimed at."""


FIRST_CALLS = {"warm caches": 3.0, "empty caches": 8.0, "no generated code kept": None}
"""States of the caches, and seconds aimed at from the end of `import torch` to the gradient."""


def first_calls(triton: str) -> dict[str, tuple[str, list[float]]]:
    """What became of generated code, and seconds of import, forward and backward, in each state."""
    found: dict[str, tuple[str, list[float]]] = {}
    for row in read("first_call"):
        if row["triton_version"] == triton:
            state, _, code = row["quantity"].partition(", ")[2].partition("; ")
            found.setdefault(state, (code, []))[1].append(float(row["seconds"]))
    return found


def first_call() -> str:
    """Seconds of a first call in each state of the caches, under each Triton."""
    rows, lines = read("first_call"), []
    by_version = {v: first_calls(v) for v in sorted({r["triton_version"] for r in rows})}
    for state, most in FIRST_CALLS.items():
        line: Row = {"caches": state}
        found = {version: of.get(state, ("", [])) for version, of in by_version.items()}
        for version, (code, seconds) in found.items():
            steps = " + ".join(f"{s:.2f}" for s in seconds)
            line[f"Triton {version}"] = f"{steps} = {sum(seconds):.1f} ({code})" if seconds else "-"
        missed = most and any(sum(seconds) > most for _, seconds in found.values())
        lines.append({**line, "aimed at": f"{most:.0f}, {'missed' if missed else 'met'}" if most else ""})
    return f"{of_versions(rows)}; import, forward and backward.\n\n{table(lines)}"


def host(name: str) -> str:
    """Host time of a call's layers under each Triton, over that of `x * 2` in the same process, from a
    file."""
    rows = [r for r in read(name) if r["section"] == "host"]
    us = {(r["triton_version"], r["function"]): float(r["us"]) for r in rows}
    versions = sorted({r["triton_version"] for r in rows})
    lines = [
        {
            "layer": layer, "over": beside,
            **{
                f"Triton {v}": f"{us[v, layer] / us[v, beside]:.2f} ({us[v, layer]:.1f} us)" for v in versions
            },
            "aimed at": f"{most:.0f}" if most else "",
        }
        for layer, (beside, most) in GOALS.items()
    ]  # fmt: skip
    return f"{of_versions(rows)}; each version in a process of its own.\n\n{table(lines)}"
