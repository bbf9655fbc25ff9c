"""Tables of residual_path.csv: an operation, every function, forward and backward."""

from __future__ import annotations

import csv
from pathlib import Path

from benchmarks.residual_path.peers import FLOOR, OURS, PEERS
from helion_sinkhorn.tuning import markdown

Row = dict[str, str]
ABSENT = (
    "Not measured yet: `python -m benchmarks.residual_path.bench --out docs/bench` on a GPU writes the data "
    "of this section, and `make docs-numbers` its tables."
)
HOW = (
    "us of a call, the smaller of two: in a CUDA graph, and queued by the host ahead of time; (q) where "
    "no graph could be captured. In brackets: over a copy of the counted bytes. Errors are root mean square, "
    "relative to the result or gradient, the worst of them, against float64 of the function's own formula; a "
    "rounding to bfloat16 alone is 1.7e-3. The peak is what backward allocates at most over its gradients, "
    "left out where memory from before was freed meanwhile (below 1)."
)


def read(path: Path) -> list[Row]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


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


def operation_table(rows: list[Row], operation: str) -> str:
    timed = [r for r in rows if r["operation"] == operation and r.get("us")]
    found = {(r["function"], r["tokens"], r["columns"], r["pass"]): r for r in timed}
    shapes = sorted({(int(r["tokens"]), int(r["columns"])) for r in timed})
    names = [name for name in (*PEERS, FLOOR) if any(r["function"] == name for r in timed)]
    records = []
    for tokens, columns in shapes:
        at = str(tokens), str(columns)
        for name in names:
            forward, backward = (found.get((name, *at, which)) for which in ("forward", "backward"))
            floors = (found.get((FLOOR, *at, which)) for which in ("forward", "backward"))
            records.append({
                "": f"**{name}**" if name == OURS else name,
                "tokens": f"{tokens:,}",
                **({"C": columns} if columns else {}),
                **{
                    which: cell(row, floor)
                    for which, row, floor in zip(
                        ("forward", "backward"), (forward, backward), floors, strict=True
                    )
                },
                "error": error(forward), "gradients": error(backward),
                "peak": peak(backward),
            })  # fmt: skip
    return markdown.of_records(records, " --- ")


def error(row: Row | None) -> str:
    return f"{float(row['error']):.0e}" if row and row.get("error") else ""


def peak(row: Row | None) -> str:
    return f"{float(row['peak']):.2f}" if row and float(row.get("peak") or 0) >= 1 else ""


def remarks(rows: list[Row], operation: str) -> list[str]:
    """What a function does otherwise, and why a figure is missing; a line each."""
    lines = []
    for row in rows:
        if row["operation"] != operation:
            continue
        who, size = row["function"], " x ".join(row[k] for k in ("tokens", "columns") if row.get(k))
        if row["section"] == "left out":
            lines.append(f"- {who}, not timed{' at ' + size if size else ''}: {row['note']}.")
        elif row["note"]:
            lines.append(f"- {who}: {row['note']}.")
        if row.get("uncaptured"):
            lines.append(f"- {who}, not in a graph: {row['uncaptured']}.")
    return list(dict.fromkeys(lines))


def when(rows: list[Row]) -> str:
    timed = next((r for r in rows if r.get("us")), rows[0])
    what = ", ".join(f"{k} {timed[f'{k}_version']}" for k in ("torch", "triton") if timed.get(f"{k}_version"))
    return f"{timed.get('device', 'no device')}, {timed['utc'][:10]}, commit {timed['commit'][:7]}, {what}"


def text(path: Path, operation: str) -> str:
    """The table of an operation with its remarks, or the sentence that says how to make it."""
    if not path.exists():
        return ABSENT
    rows = read(path)
    parts = f"{when(rows)}. {HOW}", operation_table(rows, operation), "\n".join(remarks(rows, operation))
    return "\n\n".join(parts).rstrip()


def summary(path: Path, columns: int = 4096) -> str:
    """A site in one row a function."""
    rows = [
        r for r in read(path) if r["operation"] == "site" and r["columns"] == str(columns) and r.get("us")
    ]
    found = {(r["function"], r["pass"]): r for r in rows}
    own = {which: time_of(found[OURS, which])[0] for which in ("forward", "backward")}

    def us(name: str, which: str) -> str:
        time, _ = time_of(found[name, which])
        return figure(time) + ("" if name in (OURS, FLOOR) else f" ({time / own[which]:.1f} x)")

    records = [
        {"": f"**{name}**" if name == OURS else name, **{which: us(name, which) for which in own}}
        for name in (*PEERS, FLOOR)
        if (name, "backward") in found
    ]
    return f"{markdown.of_records(records, ' --- ')}\n\nus of a call ({when(rows)})."
