"""Tuning without the device: candidates ranked by a score of their machine code."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.lab.tuning import groups as known
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.compilation import Compilation
from helion_sinkhorn.lab.tuning.finals import digits
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.lab.tuning.plan import groups_of_rank
from helion_sinkhorn.lab.tuning.provenance import device_block, provenance
from helion_sinkhorn.lab.tuning.ranking import KERNELS
from helion_sinkhorn.lab.tuning.ranking.score import MODEL, pick, score
from helion_sinkhorn.runtime.kernel import Choice


class Ranked(NamedTuple):
    """The result for one key."""

    group: known.Group
    batch: int
    choice: Choice
    score: float
    default_score: float
    before: float
    """The score of what a call got before; infinite where that spills or does not compile."""
    measured: str = ""
    """Where a measured entry of another Triton is from that stays, and nothing is written."""
    path: Path | None = None
    """The file that it was written to; None where calls get the choice without an entry."""

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "key": known.entry_key(self.group, self.batch), "config": known.jsonable(self.choice.config),
            "variant": known.jsonable(self.choice.variant), "evidence": "compiled",
            "score": digits(self.score), "default_score": digits(self.default_score), "model": MODEL,
        }  # fmt: skip


def ranked_kernels(groups: Sequence[known.Group], say: Callable[[str], None]) -> list[known.Group]:
    """The groups of kernels that are ranked; the others are named in one sentence."""
    if others := ", ".join(sorted({group.kernel for group in groups} - {*KERNELS})):
        say(f"{others}: the default config, which no ranking beats, is used until it is tuned on the device")
    return [group for group in groups if group.kernel in KERNELS]


def tune_offline(
    groups: Sequence[known.Group],
    options: Options,
    *,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[Ranked]:
    """Rank the candidates of `ranked_kernels` without timing them, and yield what came of each key.

    One ranking of binaries is for every batch; what is picked may differ with it.  A default is written only
    where look-up would give something else.  Keys measured under another Triton are left to that entry where
    its config is sound under this one.  Arguments as in `tune`.
    """
    begin = time.perf_counter()
    # what other runs have written since
    store.read.cache_clear()
    left = groups_of_rank(groups, options, "compiled")
    compiled = compilation(DEVICES[options.device], left, options.workers, None)
    try:
        for number, group in enumerate(left, 1):
            binaries = compiled.binaries(group)
            try:
                picks = [ranked(group, batch, binaries, options) for batch in group.batches]
            except RuntimeError as failure:
                say(f"{group.name}: {failure}; nothing is written for it")
                continue
            default, run = binaries[0].job.choice, provenance(group.kernel, "compiled", options)
            moved = sum(not (r.measured or known.same(r.choice, default)) for r in picks)
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{sum(not b.problems for b in binaries)} sound candidates; of {len(picks)} keys {moved} get "
                f"another than the default, {sum(bool(r.measured) for r in picks)} as measured"
            )
            # picks first: what look-up gives in place of a default depends on them
            for result in sorted(picks, key=lambda r: known.same(r.choice, default)):
                yield written(result, default, run, options)
    finally:
        compiled.stop()


def ranked(group: known.Group, batch: int, binaries: Sequence[Binary], options: Options) -> Ranked:
    """The result of the model for one key."""
    best, own, reference = pick(binaries, batch)
    entry = known.entry_before(group, batch, options)
    given = known.choice_of(group, entry) if entry else binaries[0].job.choice
    (before,) = (b for b in binaries if known.same(b.job.choice, given))
    scored = math.inf if before.problems else score(before, batch)
    if entry and entry.evidence == "measured" and not before.problems:
        return Ranked(group, batch, given, scored, reference, scored, given.source)
    return Ranked(group, batch, best.job.choice, own, reference, scored)


def written(result: Ranked, default: Choice, run: dict[str, Any], options: Options) -> Ranked:
    """The result, and in its file unless calls get its choice without an entry."""
    group, batch = result.group, result.batch
    path = options.out / options.device / f"{group.kernel}.json"
    store.read.cache_clear()
    entry = known.entry_before(group, batch, options)
    given = known.choice_of(group, entry) if entry else default
    # an older entry of the key is written anew, of this source
    is_old = entry and (entry.path, entry.batch, entry.triton) == (str(path), batch, store.triton_minor())
    if result.measured or (known.same(result.choice, default) and known.same(given, default) and not is_old):
        return result
    device = device_block(DEVICES[options.device], "not present")
    return result._replace(path=writer.merge(options.out, group.kernel, device, run, [result.entry]))


def report(results: Sequence[Ranked]) -> list[tuple[str, ...]]:
    """Rows of the table at the end, of tune.COLUMNS: scores of the configs used before and now."""
    rows = []
    for r in results:
        where = f"{r.path.parent.name}/{r.path.name}" if r.path else "none: the default"
        where = f"as measured: {r.measured}" if r.measured else where
        cycles = (str(digits(s)) for s in (r.before, r.score, r.before / r.score, r.default_score))
        rows.append((r.group.name, str(r.batch), *cycles, known.spelled(r.choice), where))
    return rows
