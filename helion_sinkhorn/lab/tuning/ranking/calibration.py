"""How well the score picks: every candidate that a tuning run timed, beside its score.

<device>/calibration.json has one line for each group of keys and minor version of Triton: its candidates, and
for each batch their microseconds and scores in the same order, the default first.  Lines of before 2026-11-26
do not say which version: a run under either 3.6 or 3.9 took the other's place.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.atomic import locked, replace
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.lab.tuning.finals import digits
from helion_sinkhorn.lab.tuning.ranking.score import MODEL, chosen, score
from helion_sinkhorn.runtime.kernel import Choice

FILE = "calibration.json"


def items(choice: Choice) -> tuple[Any, Any]:
    return tuple(sorted(choice.config)), tuple(sorted(choice.variant))


def record(path: Path, kernel: str, call: Any, binaries: Sequence[Binary], timed: Sequence[Any]) -> None:
    """Put the times of one group, [(batch, [(choice, us)])], into a calibration file, with their scores."""
    by_choice = {items(b.job.choice): b for b in binaries if b.compiled}
    batches: dict[str, dict[str, Any]] = {}
    for batch, times in timed:
        if rows := [(by_choice[items(c)], us) for c, us in times if items(c) in by_choice]:
            batches[str(batch)] = {
                "candidates": [{**dict(b.job.choice.config), **dict(b.job.choice.variant)} for b, _ in rows],
                "us": [digits(us) for _, us in rows],
                "score": [digits(score(b, batch)) for b, _ in rows],
            }
    if not batches:
        return
    line = {"kernel": kernel, "key": dict(call.key), "triton": store.triton_minor(), "model": MODEL}
    with locked(path):
        lines = {identity(other): other for other in read(path)}
        known = lines.get(identity(line), line)
        if known["model"] == MODEL:
            batches = {**known.get("batches", {}), **batches}
        lines[identity(line)] = {**line, "batches": batches}
        unsaid = lines.pop(identity({**line, "triton": ""}), {"batches": {}})
        if kept := {b: row for b, row in unsaid["batches"].items() if b not in batches}:
            lines[identity(unsaid)] = {**unsaid, "batches": kept}
        body = ",\n".join(json.dumps(lines[key]) for key in sorted(lines))
        replace(path, f"[\n{body}\n]\n")


def identity(line: dict[str, Any]) -> tuple[str, store.Key, str]:
    return line["kernel"], store.key_of(line["key"]), line.get("triton", "")


def read(path: Path) -> list[dict[str, Any]]:
    """The groups of a calibration file; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


class Quality(NamedTuple):
    """What the score's pick gains for one key."""

    kernel: str
    triton: str
    """The minor version; empty where the line does not say."""
    batch: int
    regret: float
    """Time of what `score.chosen` takes, over the best time measured."""
    default: float
    """Time of the default over the best time measured."""


def qualities(path: Path) -> Iterator[Quality]:
    """One Quality a key and batch with at least three candidates."""
    for line in read(path):
        for batch, row in line["batches"].items():
            us = row["us"]
            if len(us) >= 3:
                taken, best = us[chosen(row["score"], row["candidates"])], min(us)
                yield Quality(line["kernel"], line.get("triton", ""), int(batch), taken / best, us[0] / best)
