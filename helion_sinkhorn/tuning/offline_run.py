"""Tuning without the device: candidates ranked by a score of their machine code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helion_sinkhorn.configs import writer
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.operators import operator_of
from helion_sinkhorn.tuning import ranking
from helion_sinkhorn.tuning.compilation import Compilation
from helion_sinkhorn.tuning.finals import digits
from helion_sinkhorn.tuning.groups import Group, entry_key, jsonable
from helion_sinkhorn.tuning.options import Options
from helion_sinkhorn.tuning.plan import groups_of_rank, within_limit
from helion_sinkhorn.tuning.provenance import device_block, provenance


def tune_offline(
    groups: Sequence[Group],
    options: Options,
    *,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[list[dict[str, Any]]]:
    """Rank the candidates by their operator's score, without timing them; yield the entries of each group.

    One ranking of binaries serves every batch; what is picked may differ with it.  Kernels that the score
    was not made for are left to their defaults.  Arguments as in `tune`.
    """
    begin = time.perf_counter()
    device = DEVICES[options.device]
    left = [group for group in groups_of_rank(groups, options, "compiled") if operator_of(group.kernel).score]
    for kernel in sorted({group.kernel for group in groups if not operator_of(group.kernel).score}):
        say(f"{kernel}: no score was made for it; its default serves until it is tuned on the device")
    compiled = compilation(device, left, options.workers, None)
    try:
        for number, group in within_limit(left, begin, options.limit, say):
            binaries = compiled.binaries(group)
            entries = [ranked(group, batch, binaries) for batch in group.batches]
            run = provenance(group.kernel, "compiled", options)
            writer.merge(options.out, group.kernel, device_block(device, "not present"), run, entries)
            moved = sum(e["score"] != e["default_score"] for e in entries)
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{sum(not b.problems for b in binaries)} of {len(binaries)} candidates are sound; "
                f"another than the default for {moved} of {len(entries)} batches"
            )
            yield entries
    finally:
        compiled.stop()


def ranked(group: Group, batch: int, binaries: Sequence[Binary]) -> dict[str, Any]:
    """The entry of one key by the model alone."""
    best, own, reference = ranking.pick(operator_of(group.kernel).score, binaries, batch)
    return {
        "key": entry_key(group, batch),
        "config": jsonable(best.job.choice.config),
        "variant": jsonable(best.job.choice.variant),
        "evidence": "compiled",
        "score": digits(own),
        "default_score": digits(reference),
        "model": ranking.MODEL,
    }
