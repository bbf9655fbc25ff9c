"""Digests of results, a line each in docs/equal/<device>.json, and their differences in words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Key = tuple[str, str, tuple[str, ...]]
"""(workload, result, classes): what must be equal."""


@dataclass(frozen=True)
class Row:
    """A digest, and how many configs have it."""

    workload: str
    of: str
    classes: tuple[str, ...]
    digest: str
    configs: int

    @property
    def key(self) -> Key:
        return self.workload, self.of, self.classes


def read(path: Path) -> tuple[dict[str, Any], list[Row]]:
    """A device's description, and its rows."""
    held = json.loads(path.read_text())
    rows = [
        Row(r["workload"], r["result"], tuple(r["classes"]), r["digest"], r["configs"])
        for r in held.pop("results")
    ]
    return held, rows


def write(path: Path, about: dict[str, Any], rows: Iterable[Row]) -> None:
    """Write rows, and keep the rows of other results that the file has."""
    rows = list(rows)
    done = {(r.workload, r.of) for r in rows}
    kept = [r for r in read(path)[1] if (r.workload, r.of) not in done] if path.exists() else []
    lines = [
        json.dumps({"workload": r.workload, "result": r.of, "classes": r.classes, "digest": r.digest,
                    "configs": r.configs})
        for r in sorted({*rows, *kept}, key=lambda r: (r.key, r.digest))
    ]  # fmt: skip
    head = json.dumps(about, indent=1)[1:-2]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{" + head + ',\n "results": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n")


def differences(by_source: dict[str, Iterable[Row]]) -> list[str]:
    """A sentence for each result that has several digests, by source of the rows."""
    by: dict[Key, dict[str, list[str]]] = {}
    for source, rows in by_source.items():
        for r in rows:
            by.setdefault(r.key, {}).setdefault(r.digest, []).append(f"{source} ({r.configs} configs)")
    return [
        f"{workload}: {of}{' of class ' + ' and '.join(classes) if classes else ''} differs: "
        + "; ".join(f"{digest} by {', '.join(sources)}" for digest, sources in digests.items())
        for (workload, of, classes), digests in by.items()
        if len(digests) > 1
    ]


def shared(a: Iterable[Row], b: Iterable[Row]) -> int:
    """Results that two sources have alike."""
    return len({(r.key, r.digest) for r in a} & {(r.key, r.digest) for r in b})
