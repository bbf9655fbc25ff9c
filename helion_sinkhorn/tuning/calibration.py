"""How well the score of an operator ranks: every candidate that a tuning run timed, beside its score.

<device>/calibration.json has one line for each group of keys and minor version of Triton: its candidates, and
for each batch their microseconds and scores in the same order, the default first.  Lines of before 2026-11-26
do not say which version: a run under either 3.6 or 3.9 took the other's place.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import store, writer
from helion_sinkhorn.configs.store import Key, key_of
from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.tuning import ranking
from helion_sinkhorn.tuning.finals import digits

FILE = "calibration.json"
Score = Callable[[Binary, int], float]
Timed = Sequence[tuple[int, Sequence[tuple[Choice, float]]]]


def items(choice: Choice) -> tuple[Any, Any]:
    return tuple(sorted(choice.config)), tuple(sorted(choice.variant))


def record(
    path: Path, score: Score, kernel: str, call: Any, binaries: Sequence[Binary], timed: Timed
) -> None:
    """Put the times of one group, [(batch, [(choice, us)])], into a calibration file, with their scores."""
    by_choice = {items(b.job.choice): b for b in binaries if b.compiled}
    line = {
        "kernel": kernel,
        "key": dict(call.key),
        "triton": store.triton_minor(),
        "model": ranking.MODEL,
        "batches": {},
    }
    for batch, times in timed:
        rows = [(by_choice[items(c)], us) for c, us in times if items(c) in by_choice]
        if not rows:
            continue
        line["batches"][str(batch)] = {
            "candidates": [{**dict(b.job.choice.config), **dict(b.job.choice.variant)} for b, _ in rows],
            "us": [digits(us) for _, us in rows],
            "score": [digits(score(b, batch)) for b, _ in rows],
        }
    if not line["batches"]:
        return
    with writer.locked(path):
        lines = {identity(other): other for other in read(path)}
        known = lines.get(identity(line))
        if known is not None and known["model"] == line["model"]:
            line["batches"] = {**known["batches"], **line["batches"]}
        lines[identity(line)] = line
        if unsaid := lines.pop(identity({**line, "triton": ""}), None):
            kept = {batch: row for batch, row in unsaid["batches"].items() if batch not in line["batches"]}
            if kept:
                lines[identity(unsaid)] = {**unsaid, "batches": kept}
        body = ",\n".join(json.dumps(lines[key]) for key in sorted(lines))
        writer.replace(path, f"[\n{body}\n]\n")


def identity(line: dict[str, Any]) -> tuple[str, Key, str]:
    return line["kernel"], key_of(line["key"]), line.get("triton", "")


def read(path: Path) -> list[dict[str, Any]]:
    """The groups of a calibration file; none where there is no file."""
    return json.loads(path.read_text()) if path.exists() else []


@dataclass(frozen=True)
class Quality:
    """How well scores rank the candidates of one key."""

    kernel: str
    key: dict[str, Any]
    triton: str
    """The minor version; empty where the line does not say."""
    batch: int
    correlation: float
    """Spearman's, between scores and times of the candidates."""
    regret: float
    """Time of what `ranking.pick` would store, over the best time measured."""
    default: float
    """Time of the default over the best time measured."""


def ranks(values: Sequence[float]) -> list[float]:
    """Positions in ascending order, from 1; equal values share their mean."""
    return [sum(v < w for v in values) + (1 + sum(v == w for v in values)) / 2 for w in values]


def qualities(path: Path) -> Iterator[Quality]:
    """One Quality a key and batch with at least three candidates."""
    for line in read(path):
        for batch, row in line["batches"].items():
            us, score = row["us"], row["score"]
            if len(us) < 3 or len(set(score)) < 2 or len(set(us)) < 2:
                continue
            taken = ranking.chosen(score, row["candidates"])
            yield Quality(
                line["kernel"], line["key"], line.get("triton", ""), int(batch),
                statistics.correlation(ranks(score), ranks(us)), us[taken] / min(us), us[0] / min(us),
            )  # fmt: skip
