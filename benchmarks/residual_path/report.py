"""Tables of residual_path.csv: an operation, every function, forward and backward."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from benchmarks.residual_path.peers import FLOOR, OURS, PARTS, PEERS
from helion_sinkhorn.lab.tuning import markdown

PASSES = "forward", "backward"
table = partial(markdown.of_records, rule=" --- ")
Row = dict[str, str]
ABSENT = (
    "Not measured yet: `python -m benchmarks.bench residual_path --out docs/bench` on a GPU writes the data "
    "of this section, and `make docs-numbers` its tables."
)
TIMED = (
    "Microseconds of a call, in a CUDA graph or queued ahead by the host, whichever is faster; in brackets, "
    "over a copy of the same bytes; (q): no graph could be captured."
)
CALLED = {
    "coefficients": "hc_split_sinkhorn",
    "normed_site": "site with norm",
    "normed_boundary": "boundary with norm",
    "normed_seam": "V4's boundary with norm",
}
"""Functions whose operation has another name in the CSV."""
SITE = "see [the README](../../README.md#how-fast) for a site"
WHOLE = "site", "boundary", "normed_site", "normed_boundary", "normed_seam"
WIDTHS = "0", "4096"
"""C of the rows on the page; hc_split_sinkhorn has none."""
HEADER = """# The parts of a site beside other packages

Made of residual_path.csv, which has every row, also for C = 7168.  Streams are bfloat16 with n = 4, mixes are
float32, and there are 20 iterations.  [How to read the tables](../performance.md#the-residual-path).
"""
PARTS_OF_A_SITE = "hc_mixes", "coefficients", "hc_pre", "hc_post"


def read(path: Path, operation: str = "") -> list[Row]:
    """All its rows, or the rows of one operation."""
    with path.open(newline="") as file:
        return of(list(csv.DictReader(file)), operation)


def of(rows: list[Row], operation: str) -> list[Row]:
    return [r for r in rows if operation in ("", r["operation"])]


def with_times(rows: list[Row]) -> list[Row]:
    """Those with times."""
    return [r for r in rows if r.get("us")]


def by(rows: list[Row], *columns: str) -> dict[tuple[str, ...], Row]:
    return {tuple(row[column] for column in columns): row for row in rows}


def time_of(row: Row | None) -> tuple[float, str] | None:
    """us and how it was taken."""
    if row is None:
        return None
    queued = float(row["us"])
    return (min(float(row["graph_us"]), queued), "") if row.get("graph_us") else (queued, " (q)")


def figure(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def cell(row: Row | None, floor: Row | None) -> str:
    if (time := time_of(row)) is None:
        return "-"
    us, how = time
    least = time_of(floor)
    return figure(us) + how + (f" ({us / least[0]:.2f} x)" if least else "")


def error(row: Row | None) -> str:
    return f"{float(row['error']):.1e}" if row and row.get("error") else ""


def peak(row: Row | None) -> str:
    return f"{float(row['peak']):.2f}" if row and float(row.get("peak") or 0) >= 1 else ""


def emphasized(name: str) -> str:
    return f"**{name}**" if name == OURS else name


def operation_table(rows: list[Row], operation: str) -> str:
    """Its sizes are in the rows where there are several."""
    timed = of(with_times(rows), operation)
    found = by(timed, "function", "tokens", "columns", "pass")
    names = [name for name in (*PEERS, FLOOR) if any(r["function"] == name for r in timed)]
    sizes = sorted({(int(r["tokens"]), int(r["columns"])) for r in timed})
    records = []
    for tokens, columns in sizes:
        at = str(tokens), str(columns)
        for name in names:
            own, floor = ({w: found.get((who, *at, w)) for w in PASSES} for who in (name, FLOOR))
            records.append({
                "": emphasized(name), **({"tokens": f"{tokens:,}"} if len(sizes) > 1 else {}),
                **{which: cell(own[which], floor[which]) for which in PASSES},
                "error": error(own["forward"]), "gradients": error(own["backward"]),
                "peak": peak(own["backward"]),
            })  # fmt: skip
    return table(records)


def whole_and_parts(path: Path) -> str:
    """A site and a boundary beside their parts."""
    rows = [r for r in with_times(read(path)) if r["tokens"] == "8192"]
    found = by(rows, "operation", "columns", "pass", "function")
    records = []
    for at in itertools.product(WHOLE, ("4096", "7168"), PASSES):
        whole, parts, copy = (found.get((*at, name)) for name in (OURS, PARTS, FLOOR))
        if whole:
            records.append({
                "": CALLED.get(at[0], at[0]), "C": at[1], "pass": at[2], "copy": cell(copy, None),
                "one call": cell(whole, copy), "kernels": whole.get("kernels") or "-",
                "its parts": cell(parts, copy),
            })  # fmt: skip
    return f"{runs(rows, WHOLE)}. {TIMED}\n\n{table(records)}"


def remarks(rows: list[Row], operation: str) -> list[str]:
    """What a function does otherwise, and why a figure is missing; a line each."""
    lines = []
    for row in of(rows, operation):
        who, size = row["function"], " x ".join(row[k] for k in ("tokens", "columns") if row.get(k))
        if row.get("section") == "left out":
            lines.append(f"- {who}, not timed{' at ' + size if size else ''}: {row['note']}.")
        elif row.get("note"):
            lines.append(f"- {who}: {row['note']}.")
        if row.get("uncaptured"):
            lines.append(f"- {who}, not in a graph: {row['uncaptured']}.")
    told = (line.replace("see site", SITE) for line in dict.fromkeys(lines))
    return [*told, *of_other_runs(rows, operation)]


def of_other_runs(rows: list[Row], operation: str) -> list[str]:
    """A line for each function whose times come from a different run than the table's."""
    rows, at = of(rows, operation), {}
    own = run_of(first_timed(rows))
    for row in rows:
        if row.get("us") and run_of(row) != own:
            place = f"{row['pass']} at {row['tokens']} x {row['columns']}"
            at.setdefault((row["function"], run_of(row)), []).append(place)
    return [
        f"- {who}: measured in a separate run ({run}): {', '.join(places)}."
        for (who, run), places in at.items()
    ]


def first_timed(rows: list[Row]) -> Row:
    """The first row with a time, of this package where it has one: its run is the table's."""
    timed = [r for r in rows if r.get("us")]
    return next((r for r in timed if r["function"] == OURS), next(iter(timed), rows[0]))


def run_of(row: Row) -> str:
    """The day and the commit of a row, and its Triton where that is known."""
    triton = f", triton {row['triton_version']}" if row.get("triton_version") else ""
    return f"{row['utc'][:10]}, commit {row['commit'][:7]}{triton}"


def when(rows: list[Row]) -> str:
    timed = first_timed(rows)
    torch = f", torch {timed['torch_version']}" if timed.get("torch_version") else ""
    return f"{timed.get('device', 'no device')}, {run_of(timed)}{torch}"


def runs(rows: list[Row], operations: Iterable[str]) -> str:
    """The runs of these operations; their names stand before them where there are several."""
    found: dict[str, list[str]] = {}
    for operation in operations:
        if own := of(rows, operation):
            found.setdefault(when(own), []).append(CALLED.get(operation, operation))
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{', '.join(names)}: {run}" for run, names in found.items())


def text(path: Path, operation: str) -> str:
    """The table of an operation with its remarks, or the sentence that says how to make it."""
    rows = read(path, operation) if path.exists() else []
    if not rows:
        return ABSENT
    shown = [row for row in rows if row.get("columns", "") in ("", *WIDTHS)]
    parts = (
        f"{when(rows)}{size_of(shown)}.",
        operation_table(shown, operation),
        "\n".join(remarks(shown, operation)),
    )
    return "\n\n".join(part for part in parts if part).rstrip()


def page(path: Path) -> str:
    """residual_path.md: every part of a site."""
    sections = (f"## {CALLED.get(of, of)}\n\n{text(path, of)}\n" for of in PARTS_OF_A_SITE)
    return "\n".join([HEADER, *sections])


def size_of(rows: list[Row]) -> str:
    """Tokens and columns where all rows have the same."""
    sizes = {(int(r["tokens"]), r["columns"]) for r in with_times(rows)}
    return "".join(f"; {tokens:,} tokens, C = {columns}" for tokens, columns in sizes if len(sizes) == 1)


def saving(theirs: float, ours: float) -> str:
    """How much less theirs is, in percent; empty where it is not, to the digit that is shown."""
    percent = f"{100 * (1 - theirs / ours):.1f} %"
    return "" if percent.startswith(("-", "0.0 ")) else percent


def better(rows: list[Row], operation: str) -> list[dict[str, str]]:
    """Where another package takes less time or memory than ours."""
    timed = [r for r in of(with_times(rows), operation) if r["function"] != FLOOR]
    own = by([r for r in timed if r["function"] == OURS], "tokens", "columns", "pass")
    found = []
    for row in timed:
        mine = own.get((row["tokens"], row["columns"], row["pass"]))
        if is_ours(row["function"]) or mine is None:
            continue
        size = f"{int(row['tokens']):,}" + (f" x {row['columns']}" if int(row["columns"]) else "")
        at = {"package": row["function"], "operation": CALLED.get(operation, operation), "tokens x C": size}
        theirs, ours = time_of(row)[0], time_of(mine)[0]
        if less := saving(theirs, ours):
            us = {"what": f"{row['pass']}, us", "theirs": f"{theirs:.4g}", "ours": f"{ours:.4g}"}
            found.append({**at, **us, "less by": less})
        # compared as they are shown
        if peak(row) and peak(mine) and float(peak(row)) < float(peak(mine)):
            memory = {"what": "memory / gradients, backward", "theirs": peak(row), "ours": peak(mine)}
            found.append({**at, **memory, "less by": saving(float(row["peak"]), float(mine["peak"]))})
    return found


def is_ours(name: str) -> bool:
    """Whether a row is of this package, in one call, in parts or in another precision."""
    return name == PARTS or name.startswith(OURS)


def all_better(path: Path) -> str:
    """The cells of every operation in which another package is better."""
    rows = with_times(read(path))
    operations = dict.fromkeys(r["operation"] for r in rows)
    cells, others = [], []
    for operation in operations:
        found = better(rows, operation)
        shown = {cell["package"] for cell in found} | {OURS}
        lines = of_other_runs([r for r in rows if r["function"] in shown], operation)
        cells += found
        others += [f"- {CALLED.get(operation, operation)}, {line.removeprefix('- ')}" for line in lines]
    parts = f"{runs(rows, operations)}.", table(cells), "\n".join(others)
    return "\n\n".join(part for part in parts if part)


def summary(path: Path, columns: int = 4096) -> str:
    """A site in one row a function."""
    every = read(path, "site")
    rows = [r for r in with_times(every) if r["columns"] == str(columns)]
    found = by(rows, "function", "pass")
    own = {which: time_of(found[OURS, which])[0] for which in PASSES}

    def us(name: str, which: str) -> str:
        time, _ = time_of(found[name, which])
        return figure(time) + ("" if name in (OURS, FLOOR) else f" ({time / own[which]:.1f}x)")

    records = [
        {
            "": emphasized(name), **{which: us(name, which) for which in own},
            "memory": peak(found[name, "backward"]),
            "error": error(found[name, "forward"]), "error, gradients": error(found[name, "backward"]),
        }
        for name in (*PEERS, FLOOR)
        if (name, "backward") in found and (name == OURS or not is_ours(name))
    ]  # fmt: skip
    said = (
        "Microseconds, in a CUDA graph or queued calls, whichever is faster; in brackets, the ratio to ours "
        f"({when(every)}). *memory*: the peak of what backward allocates, over the bytes of its "
        "gradients. *error*: root mean square, against float64 of the package's own formula; rounding to "
        "bfloat16 makes 1.7e-03. *copy* moves the same bytes."
    )
    if absent := dict.fromkeys(r["function"] for r in every if r.get("section") == "left out"):
        said += f" {' and '.join(absent)} could not be timed ([why](docs/performance.md#the-residual-path))."
    if others := dict.fromkeys(r["function"] for r in rows if run_of(r) != run_of(first_timed(every))):
        said += f" {' and '.join(others)}: measured in a separate run on the same device."
    return f"{table(records)}\n\n{said}"
