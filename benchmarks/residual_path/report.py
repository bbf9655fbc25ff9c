"""Tables of residual_path.csv: an operation, every function, forward and backward."""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path

import pandas

from benchmarks.residual_path.peers import FLOOR, OURS, PARTS, PEERS
from helion_sinkhorn.lab.tuning import markdown

PASSES = "forward", "backward"
table = partial(markdown.of_records, rule=" --- ")
Row = pandas.Series
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
OPTIONAL = "section", "graph_us", "kernels", "error", "peak", "note", "uncaptured", "triton_version"
"""Columns that not every run has."""
SITE = "see [the README](../../README.md#how-fast) for a site"
WHOLE = "site", "boundary", "normed_site", "normed_boundary", "normed_seam"
WIDTHS = "", "0", "4096"
"""C of the rows on the page; hc_split_sinkhorn has none."""
HEADER = """# The parts of a site beside other packages

Made of residual_path.csv, which has every row, also for C = 7168.  Streams are bfloat16 with n = 4, mixes are
float32, and there are 20 iterations.  [How to read the tables](../performance.md#the-residual-path).
"""
PARTS_OF_A_SITE = "hc_mixes", "coefficients", "hc_pre", "hc_post"


def read(path: Path) -> pandas.DataFrame:
    """All rows as text, an empty one where a run has none; `time` is us of the faster timer, `run` its day,
    commit and Triton."""
    rows = pandas.read_csv(path, dtype=str, keep_default_na=False)
    rows = rows.reindex(columns=rows.columns.union(OPTIONAL, sort=False), fill_value="")
    rows["time"] = rows[["us", "graph_us"]].apply(pandas.to_numeric).min(axis=1)
    triton = (", triton " + rows.triton_version).where(rows.triton_version != "", "")
    rows["run"] = rows.utc.str[:10] + ", commit " + rows.commit.str[:7] + triton
    rows["called"] = rows.operation.replace(CALLED)
    return rows


def of(rows: pandas.DataFrame, operation: str) -> pandas.DataFrame:
    return rows[rows.operation == operation]


def by(rows: pandas.DataFrame, *columns: str) -> dict[tuple[str, ...], Row]:
    """The rows with times by their values in these columns."""
    return {tuple(row[list(columns)]): row for _, row in rows[rows.us != ""].iterrows()}


def figure(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def cell(row: Row | None, floor: Row | None) -> str:
    if row is None:
        return "-"
    queued = "" if row.graph_us else " (q)"
    return figure(row.time) + queued + ("" if floor is None else f" ({row.time / floor.time:.2f} x)")


def error(row: Row | None) -> str:
    return f"{float(row.error):.1e}" if row is not None and row.error else ""


def peak(row: Row | None) -> str:
    return f"{float(row.peak):.2f}" if row is not None and float(row.peak or 0) >= 1 else ""


def emphasized(name: str) -> str:
    return f"**{name}**" if name == OURS else name


def operation_table(rows: pandas.DataFrame) -> str:
    """Its sizes are in the rows where there are several."""
    timed = by(rows, "function", "tokens", "columns", "pass")
    sizes = sorted({at[1:3] for at in timed}, key=lambda size: tuple(map(int, size)))
    records = []
    for size, name in itertools.product(sizes, (*PEERS, FLOOR)):
        if all(at[0] != name for at in timed):
            continue
        own, floor = ({w: timed.get((who, *size, w)) for w in PASSES} for who in (name, FLOOR))
        records.append({
            "": emphasized(name), **({"tokens": f"{int(size[0]):,}"} if len(sizes) > 1 else {}),
            **{which: cell(own[which], floor[which]) for which in PASSES},
            "error": error(own["forward"]), "gradients": error(own["backward"]),
            "peak": peak(own["backward"]),
        })  # fmt: skip
    return table(records)


def whole_and_parts(path: Path) -> str:
    """A site and a boundary beside their parts."""
    rows = read(path).query("tokens == '8192' and operation in @WHOLE and us != ''")
    timed = by(rows, "operation", "columns", "pass", "function")
    records = []
    for at in itertools.product(WHOLE, ("4096", "7168"), PASSES):
        whole, parts, copy = (timed.get((*at, name)) for name in (OURS, PARTS, FLOOR))
        if whole is not None:
            records.append({
                "": whole.called, "C": at[1], "pass": at[2], "copy": cell(copy, None),
                "one call": cell(whole, copy), "kernels": whole.kernels or "-",
                "its parts": cell(parts, copy),
            })  # fmt: skip
    return f"{runs(rows)}. {TIMED}\n\n{table(records)}"


def remarks(rows: pandas.DataFrame) -> list[str]:
    """What a function does otherwise, and why a figure is missing; a line each."""
    lines = []
    for row in rows.itertuples():
        if row.section == "left out":
            size = " x ".join(filter(None, (row.tokens, row.columns)))
            lines.append(f"- {row.function}, not timed{' at ' + size if size else ''}: {row.note}.")
        elif row.note:
            lines.append(f"- {row.function}: {row.note}.")
        if row.uncaptured:
            lines.append(f"- {row.function}, not in a graph: {row.uncaptured}.")
    return [line.replace("see site", SITE) for line in dict.fromkeys(lines)]


def of_other_runs(rows: pandas.DataFrame) -> list[str]:
    """A line for each function whose times come from a different run than the table's."""
    at: dict[tuple[str, str], list[str]] = {}
    for row in by(rows, "function", "tokens", "columns", "pass").values():
        if row.run != first_timed(rows).run:
            place = f"{row['pass']} at {row.tokens} x {row.columns}"
            at.setdefault((row.function, row.run), []).append(place)
    return [
        f"- {who}: measured in a separate run ({run}): {', '.join(places)}."
        for (who, run), places in at.items()
    ]


def first_timed(rows: pandas.DataFrame) -> Row:
    """The first row with a time, of this package where it has one: its run is the table's."""
    timed = rows[rows.us != ""]
    own = timed[timed.function == OURS]
    return (timed if own.empty else own).iloc[0]


def when(rows: pandas.DataFrame) -> str:
    timed = first_timed(rows)
    return f"{timed.device}, {timed.run}, torch {timed.torch_version}"


def runs(rows: pandas.DataFrame) -> str:
    """The runs of the operations; their names stand before them where there are several."""
    each = rows.groupby("called", sort=False)[rows.columns].apply(when)
    if each.nunique() == 1:
        return each.iloc[0]
    return "; ".join(f"{', '.join(of.index)}: {run}" for run, of in each.groupby(each, sort=False))


def page(path: Path) -> str:
    """residual_path.md: the table of every part of a site with its remarks."""
    parts, rows = [HEADER], read(path)
    for own in (of(rows, operation) for operation in PARTS_OF_A_SITE):
        shown = own[own["columns"].isin(WIDTHS)]
        lines = [*remarks(shown), *of_other_runs(shown)]
        text = f"{when(own)}{size_of(shown)}.", operation_table(shown), "\n".join(lines)
        parts.append(f"## {own.called.iloc[0]}\n\n" + "\n\n".join(filter(None, text)) + "\n")
    return "\n".join(parts)


def size_of(rows: pandas.DataFrame) -> str:
    """Tokens and columns where all rows have the same."""
    sizes = {at for at in by(rows, "tokens", "columns")}
    return "".join(f"; {int(tokens):,} tokens, C = {c}" for tokens, c in sizes if len(sizes) == 1)


def saving(theirs: float, ours: float) -> str:
    """How much less theirs is, in percent; empty where it is not, to the digit that is shown."""
    percent = f"{100 * (1 - theirs / ours):.1f} %"
    return "" if percent.startswith(("-", "0.0 ")) else percent


def better(rows: pandas.DataFrame) -> list[dict[str, str]]:
    """Where another package takes less time or memory than ours."""
    timed, records = by(rows, "function", "tokens", "columns", "pass"), []
    for (name, *at), row in timed.items():
        mine = timed.get((OURS, *at))
        if name == FLOOR or is_ours(name) or mine is None:
            continue
        size = f"{int(row.tokens):,}" + (f" x {row['columns']}" if int(row["columns"]) else "")
        place = {"package": name, "operation": row.called, "tokens x C": size}
        if less := saving(row.time, mine.time):
            us = {"what": f"{row['pass']}, us", "theirs": f"{row.time:.4g}", "ours": f"{mine.time:.4g}"}
            records.append({**place, **us, "less by": less})
        # compared as they are shown
        if peak(row) and peak(mine) and float(peak(row)) < float(peak(mine)):
            memory = {"what": "memory / gradients, backward", "theirs": peak(row), "ours": peak(mine)}
            records.append({**place, **memory, "less by": saving(float(row.peak), float(mine.peak))})
    return records


def is_ours(name: str) -> bool:
    """Whether a row is of this package, in one call, in parts or in another precision."""
    return name == PARTS or name.startswith(OURS)


def all_better(path: Path) -> str:
    """The cells of every operation in which another package is better."""
    rows = read(path).query("us != ''")
    cells, others = [], []
    for called, own in rows.groupby("called", sort=False):
        records = better(own)
        shown = own[own.function.isin({OURS, *(cell["package"] for cell in records)})]
        cells += records
        others += [f"- {called}, {line.removeprefix('- ')}" for line in of_other_runs(shown)]
    parts = f"{runs(rows)}.", table(cells), "\n".join(others)
    return "\n\n".join(filter(None, parts))


def summary(path: Path) -> str:
    """A site in one row a function, C = 4096."""
    every = of(read(path), "site")
    rows = every[every["columns"] == "4096"]
    timed = by(rows, "function", "pass")

    def us(name: str, which: str) -> str:
        time = timed[name, which].time
        over = "" if name in (OURS, FLOOR) else f" ({time / timed[OURS, which].time:.1f}x)"
        return figure(time) + over

    records = [
        {
            "": emphasized(name), **{which: us(name, which) for which in PASSES},
            "memory": peak(timed[name, "backward"]),
            "error": error(timed[name, "forward"]), "error, gradients": error(timed[name, "backward"]),
        }
        for name in (*PEERS, FLOOR)
        if (name, "backward") in timed and (name == OURS or not is_ours(name))
    ]  # fmt: skip
    said = (
        "Microseconds, in a CUDA graph or queued calls, whichever is faster; in brackets, the ratio to ours "
        f"({when(every)}). *memory*: the peak of what backward allocates, over the bytes of its "
        "gradients. *error*: root mean square, against float64 of the package's own formula; rounding to "
        "bfloat16 makes 1.7e-03. *copy* moves the same bytes."
    )
    if absent := " and ".join(every[every.section == "left out"].function.unique()):
        said += f" {absent} could not be timed ([why](docs/performance.md#the-residual-path))."
    other_run = (rows.us != "") & (rows.run != first_timed(every).run)
    if others := " and ".join(rows[other_run].function.unique()):
        said += f" {others}: measured in a separate run on the same device."
    return f"{table(records)}\n\n{said}"
