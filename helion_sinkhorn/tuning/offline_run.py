"""Tuning without the device: candidates ranked by a score of their machine code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs import store, writer
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.operators import operator_of
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.tuning import ranking
from helion_sinkhorn.tuning.compilation import Compilation
from helion_sinkhorn.tuning.finals import digits
from helion_sinkhorn.tuning.groups import Group, choice_of, entry_before, entry_key, jsonable, same, spelled
from helion_sinkhorn.tuning.options import Options
from helion_sinkhorn.tuning.plan import groups_of_rank
from helion_sinkhorn.tuning.provenance import device_block, provenance


@dataclass(frozen=True)
class Ranked:
    """What came of one key."""

    group: Group
    batch: int
    choice: Choice
    score: float
    default_score: float
    before: float
    """The score of what served before; infinite where that spills or does not compile."""
    measured: str = ""
    """Where a measured entry of another Triton is from that stays, and nothing is written."""
    path: Path | None = None

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "key": entry_key(self.group, self.batch),
            "config": jsonable(self.choice.config),
            "variant": jsonable(self.choice.variant),
            "evidence": "compiled",
            "score": digits(self.score),
            "default_score": digits(self.default_score),
            "model": ranking.MODEL,
        }


def tune_offline(
    groups: Sequence[Group],
    options: Options,
    *,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[Ranked]:
    """Rank the candidates by their operator's score, without timing them, and yield what came of each key.

    One ranking of binaries is for every batch; what is picked may differ with it.  Kernels that the score
    was not made for are left to their defaults, and keys measured under another Triton to that entry where
    its config is sound under this one.  Arguments as in `tune`.
    """
    begin = time.perf_counter()
    # what other runs have written since
    store.read.cache_clear()
    device = DEVICES[options.device]
    left = [group for group in groups_of_rank(groups, options, "compiled") if operator_of(group.kernel).score]
    for kernel in sorted({group.kernel for group in groups if not operator_of(group.kernel).score}):
        say(f"{kernel}: no score was made for it; its default config is used until it is tuned on the device")
    compiled = compilation(device, left, options.workers, None)
    try:
        for number, group in enumerate(left, 1):
            binaries = compiled.binaries(group)
            try:
                found = [ranked(group, batch, binaries, options) for batch in group.batches]
            except RuntimeError as failure:
                say(f"{group.name}: {failure}; nothing is written for it")
                continue
            new = [result.entry for result in found if not result.measured]
            path = None
            if new:
                run = provenance(group.kernel, "compiled", options)
                name = reported_name(options.out / options.device / f"{group.kernel}.json")
                path = writer.merge(options.out, group.kernel, device_block(device, name), run, new)
            moved = sum(e["score"] != e["default_score"] for e in new)
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{sum(not b.problems for b in binaries)} of {len(binaries)} candidates are sound; another "
                f"than the default for {moved} of {len(found)} batches, {len(found) - len(new)} as measured"
            )
            yield from (replace(result, path=path) for result in found)
    finally:
        compiled.stop()


def reported_name(path: Path) -> str:
    """The name under which the driver reported the device of a file that has measured entries."""
    with writer.locked(path):
        data = writer.load(path)
    is_measured = data is not None and any(e["evidence"] == "measured" for e in data["entries"])
    return data["device"]["name"] if is_measured else "not present"


def ranked(group: Group, batch: int, binaries: Sequence[Binary], options: Options) -> Ranked:
    """What the model alone makes of one key."""
    score = operator_of(group.kernel).score
    best, own, reference = ranking.pick(score, binaries, batch)
    entry = entry_before(group, batch, options)
    served = choice_of(group, entry) if entry else binaries[0].job.choice
    (before,) = (b for b in binaries if same(b.job.choice, served))
    if before.problems:
        return Ranked(group, batch, best.job.choice, own, reference, math.inf)
    scored = score(before, batch)
    if entry and entry.evidence == "measured":
        return Ranked(group, batch, served, scored, reference, scored, served.source)
    return Ranked(group, batch, best.job.choice, own, reference, scored)


def report(results: Sequence[Ranked]) -> list[tuple[str, ...]]:
    """Rows of the table at the end, of tune.COLUMNS: scores of the configs used before and now."""
    return [
        (
            r.group.name, str(r.batch), str(digits(r.before)), str(digits(r.score)),
            f"{r.before / r.score:.2f}", str(digits(r.default_score)), spelled(r.choice),
            f"as measured: {r.measured}" if r.measured else f"{r.path.parent.name}/{r.path.name}",
        )
        for r in results
    ]  # fmt: skip
