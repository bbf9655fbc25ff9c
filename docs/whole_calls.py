"""Tables of whole calls: two operators beside others, and memory, from the CSV files of their benchmarks."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from benchmarks.sinkhorn.peers import FLOOR, OURS
from ci.gate.markdown import table

BENCH = Path(__file__).resolve().parents[1] / "docs" / "bench"
Row = dict[str, str]
SHOWN_TOKENS = "1", "16", "64", "128", "256", "1024", "8192"
"""Tokens that the page shows; serving.csv has more."""


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
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def seams() -> str:
    """A server's seam by tokens: microseconds for each scheme and C."""
    rows = read("serving")
    us = {(row["tokens"], f"{row['scheme']}, {row['columns']}"): figure(row["us"]) for row in rows}
    titles = dict.fromkeys(title for _, title in us)
    records = [{"tokens": f"{int(n):,}", **{t: us.get((n, t), "-") for t in titles}} for n in SHOWN_TOKENS]
    return f"{stated(rows[0])}\n\n{table(records)}"


def dot_compress() -> str:
    """Times in a CUDA graph over a copy, and of single calls, for each batch and pass."""
    rows = read("dot_compress")
    names = list(dict.fromkeys(row["function"] for row in rows))
    graphs, singles = [], []
    for (batch, which), some in grouped(rows, "batch", "pass").items():
        place, by_function = {"B": batch, "pass": which}, {row["function"]: row for row in some}
        us = {name: float(row["us_graph"]) for name, row in by_function.items()}
        over = {name: f"{figure(t)}, {t / us[FLOOR]:.2f} x" for name, t in us.items()}
        over[FLOOR] = figure(us[FLOOR])
        graphs.append({**place, **{name: over.get(name, "") for name in names}})
        singles.append({**place, **{n: figure(r["us"]) for n, r in by_function.items() if n != FLOOR}})
    return (
        f"{stated(rows[0])} Microseconds of one replay of a CUDA graph, and the ratio to a copy that moves "
        f"every tensor once:\n\n{table(graphs)}\n\nA single call takes longer, because the device is idle "
        f"during the launches and autograd:\n\n{table(singles)}"
    )


def balance() -> str:
    """For each device, times of updates by functions and by shares of masked rows, and of whole steps."""
    runs = grouped(read("balance"), "device")
    return "\n\n".join(map(balance_run, runs.values()))


def balance_run(rows: list[Row]) -> str:
    """Tables of the rows of one device."""
    calls = beside_ours("update", "sinkhorn_balance", [row for row in rows if not row["section"]])
    measured = [row for row in rows if row["section"] == "step" and row["us"]]
    steps = beside_ours("weight", "optimizer", measured)
    whole = f"\n\nWhole steps of optimizers:\n\n{table(steps)}" if steps else ""
    return f"{stated(rows[0])} Microseconds of a replay of a CUDA graph:\n\n{table(calls)}{whole}"


def beside_ours(place: str, own: str, rows: list[Row]) -> list[Row]:
    """A record of each shape for which `own` is measured: it, the other functions, and the floor."""
    records = []
    for (shape, dtype), some in grouped(rows, "shape", "dtype").items():
        us = {row["function"]: float(row["us"]) for row in some if not float(row["masked"])}
        if own not in us:
            continue
        over = {float(row["masked"]): row["x_floor"] for row in some if row["function"] == own}
        shares = ", ".join(f"{x} x" for share, x in over.items() if share)
        records.append({
            place: f"{shape}, {dtype}", "a copy": figure(some[0]["us_copy"]),
            f"`{own}`" if place == "update" else "step": figure(us[own]),
            **{name: f"{figure(t)}, {t / us[own]:.1f} x" for name, t in us.items() if name != own},
            "over the floor": f"{over[0.0]} x",
            **({"with 50, 90, 99 % of rows masked": shares} if place == "update" else {}),
        })  # fmt: skip
    return records


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
            "every": row["every"], "kept after the forward": f"{int(row['held']) / size:,.0f} S",
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


def of_versions(rows: list[Row]) -> str:
    """Device and torch of runs under several Tritons, and of which day and commit each of them is."""
    runs = {r["triton_version"]: f"{r['utc'][:10]}, commit {r['commit'][:7]}" for r in rows}
    said = "; ".join(f"Triton {version}: {run}" for version, run in sorted(runs.items()))
    return f"{rows[0]['device']}, torch {rows[0]['torch_version']}; {said}"


FIRST_CALLS = {"warm caches": 3.0, "empty caches": 8.0, "no generated code kept": None}
"""States of the caches, and seconds aimed at from the end of `import torch` to the gradient."""


def first_call() -> str:
    """Seconds of a first call in each state of the caches, for each device and stack."""
    lines = []
    for rows in grouped(read("first_call"), "device", "torch_version", "triton_version").values():
        line = {"": stated(rows[0]).removesuffix("."), **dict.fromkeys(FIRST_CALLS, "-")}
        small = [{**r, "of": r["quantity"].partition(", ")[2]} for r in rows if r["n"] == "4"]
        for (said,), steps in grouped(small, "of").items():
            state, _, code = said.partition("; ")
            seconds = [float(row["seconds"]) for row in steps]
            line[state] = f"{' + '.join(f'{s:.2f}' for s in seconds)} = {sum(seconds):.1f} ({code})"
        lines.append(line)
    goals = {state: f"{most:.0f}" if most else "" for state, most in FIRST_CALLS.items()}
    return table([*lines, {"": "aimed at", **goals}])


LAYERS = {
    "sinkhorn, no gradient": "x * 2",
    "sinkhorn, with gradient": "x * 2, with gradient",
    "torch.ops, forward": "x * 2",
    "backward through autograd": "backward of x * 2 through autograd",
}
"""Layers of a call of 128 matrices, and what each is compared with in the same process."""


def host(*names: str) -> str:
    """Host time of a call's layers, relative to `x * 2`, from files of several devices and Tritons."""
    pairs: dict[str, list[tuple[float, float]]] = {layer: [] for layer in LAYERS}
    said = []
    for name in names:
        rows = [r for r in read(name) if r["section"] == "host"]
        us = {(r["triton_version"], r["function"]): float(r["us"]) for r in rows}
        said.append(of_versions(rows))
        for version in sorted({r["triton_version"] for r in rows}):
            for layer, beside in LAYERS.items():
                pairs[layer].append((us[version, layer] / us[version, beside], us[version, layer]))
    lines = [
        f"- {layer}: {extremes(ratios, '.2f')} times {LAYERS[layer]} ({extremes(us, '.1f')} us)"
        for layer, (ratios, us) in ((layer, zip(*values, strict=True)) for layer, values in pairs.items())
    ]
    return "\n".join([*lines, "", f"{'. '.join(said)}."])


def extremes(values: Sequence[float], digits: str) -> str:
    """The smallest and the largest."""
    return f"{min(values):{digits}} to {max(values):{digits}}"
