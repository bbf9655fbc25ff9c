"""README.md of the tuning cache: its hand-written part, and tables from its files."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

from helion_sinkhorn.lab.tuning import markdown
from helion_sinkhorn.lab.tuning.check import files
from helion_sinkhorn.lab.tuning.ranking import KERNELS, calibration

TABLES = "<!-- from the data, by `make docs-numbers` -->"


def entry_rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each kernel, a column for each device: the number of entries, the gain of measured ones."""
    rows: dict[str, dict[str, Any]] = {}
    for path in files(folder):
        entries = json.loads(path.read_text())["entries"]
        gain = [e["default_us"] / e["us"] for e in entries if "us" in e]
        said = [f"{len(gain)}: {statistics.geometric_mean(gain):.2f} ({max(gain):.2f})"] if gain else []
        if compiled := len(entries) - len(gain):
            said.append(f"{compiled} compiled")
        rows.setdefault(path.stem, {"kernel": path.stem})[path.parent.name] = ", ".join(said)
    return [rows[kernel] for kernel in sorted(rows)]


def calibration_rows(folder: Path) -> list[list[Any]]:
    rows = []
    for path in sorted(folder.glob(f"*/{calibration.FILE}")):
        every = list(calibration.qualities(path))
        for triton, kernel in itertools.product(sorted({q.triton for q in every}), [*KERNELS, "all"]):
            some = [q for q in every if kernel in (q.kernel, "all") and q.triton == triton]
            if some:
                regrets = sorted(q.regret for q in some)
                rows.append([
                    path.parent.name, triton or "3.6 or 3.9", kernel, len(some),
                    f"{statistics.median(regrets):.3f}", f"{regrets[int(0.9 * (len(some) - 1))]:.3f}",
                    f"{statistics.median(q.default for q in some):.3f}",
                    sum(q.regret > 1.02 * q.default for q in some),
                ])  # fmt: skip
    return rows


def readme(folder: Path) -> str:
    """README.md of a folder: its hand-written part, and tables from its files."""
    text = (folder / "README.md").read_text().split(TABLES)[0].rstrip()
    parts = [text, "", TABLES, ""]
    rows = entry_rows(folder)
    if rows:
        parts += [
            "## Entries", "",
            "How many a device has, and how many times as fast as the default config measured ones are: the "
            "geometric mean, and in brackets the largest. *compiled*: ranked by machine code, never run.", "",
            markdown.of_records(rows), "",
        ]  # fmt: skip
    rows = calibration_rows(folder)
    if rows:
        titles = (
            "measured on", "Triton", "kernel", "keys", "regret", "regret, 90 %", "default over best",
            "worse than the default",
        )  # fmt: skip
        parts += [
            "## How well machine code ranks", "",
            "All candidates of a key were timed and scored. Medians over keys; regret is the time of what "
            "the score picks over the best time measured. Scores are of the model at the time of the run. "
            "The last column counts keys where the pick is more than 2 % slower than the default.", "",
            markdown.table(titles, rows), "",
        ]  # fmt: skip
    return "\n".join(parts).rstrip() + "\n"
