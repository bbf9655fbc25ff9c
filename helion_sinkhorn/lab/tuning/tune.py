"""The tuner: time every candidate of a kernel's space on this device and keep what pays.

Keys that differ in the batch alone share their binaries, so they are tuned as one group: its
candidates are compiled once, by processes of their own (machine.compiler.compile_for, whose binaries
Triton's cache hands over), while the group before is being timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.tuning import writer
from helion_sinkhorn.lab.tuning.compilation import Compilation, count_compilations, launchable
from helion_sinkhorn.lab.tuning.finals import (
    ROUNDS,
    Bench,
    Clock,
    Judge,
    Result,
    digits,
    gpu_clock,
    gpu_timing_lock,
    on_gpu,
    tune_key,
)
from helion_sinkhorn.lab.tuning.groups import Group, choice_of, entry_before, same, spelled
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.lab.tuning.plan import groups_of_rank
from helion_sinkhorn.lab.tuning.provenance import device_block, provenance
from helion_sinkhorn.lab.tuning.ranking import KERNELS as RANKED
from helion_sinkhorn.lab.tuning.ranking import calibration

CANDIDATES_SHARE = 0.5
"""The share of the seconds left that the candidates of a key may take before its finals."""


def tune(
    groups: Sequence[Group],
    options: Options,
    reported: str,
    *,
    clock: Clock = gpu_clock,
    judge: Judge = on_gpu,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Tune this rank's share of the groups, write after every key, and yield what came of each.

    Args:
        groups: the whole plan, the same on every rank.
        options: of the command.
        reported: the device's name as its driver gives it.
        clock, judge, compilation: how candidates are timed, tested and compiled; the GPU's by default.
        say: where progress goes.
    """
    begin = time.perf_counter()
    # what other runs have written since
    store.read.cache_clear()
    device = DEVICES[options.device]
    left = groups_of_rank(groups, options)
    compiled = compilation(device, left, options.workers, options.cache)
    missed, bench = count_compilations(), Bench(clock, judge, ROUNDS[options.effort], gpu_timing_lock())
    try:
        for number, group in enumerate(left, 1):
            binaries = compiled.binaries(group)
            choices = launchable(binaries)
            run, timed = provenance(group.kernel, "measured", options), []
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{len(choices)} of {len(binaries)} candidates; compiled here so far: {missed()}"
            )
            for batch in group.batches:
                before = entry_before(group, batch, options)
                stored = choice_of(group, before) if before else None
                # of the candidates: a stored choice that is refused makes way for the default and its time
                old = next((c for c in choices if stored and same(c, stored)), None)
                try:
                    result = tune_key(group, batch, choices, old, bench, CANDIDATES_SHARE * options.left)
                except RuntimeError as failure:
                    say(f"{failure}: {failure.__cause__ or 'nothing is written for it'}")
                    continue
                result.path = writer.merge(
                    options.out, group.kernel, device_block(device, reported), run, [result.entry]
                )
                say(f"  {result}")
                timed.append((result.batch, result.times))
                yield result
            if group.kernel in RANKED:
                path = options.out / options.device / calibration.FILE
                calibration.record(path, group.kernel, group.call, binaries, timed)
    finally:
        compiled.stop()


COLUMNS = ["key", "batch", "before", "after", "before / after", "default", "config", "file"]


def report(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of the table at the end, of COLUMNS: microseconds of the configs used before and now."""
    return [
        (
            r.group.name, str(r.batch), str(digits(r.old_us or r.default_us)), str(digits(r.us)),
            f"{(r.old_us or r.default_us) / r.us:.2f}", str(digits(r.default_us)), spelled(r.winner),
            f"{r.path.parent.name}/{r.path.name}",
        )
        for r in results
    ]  # fmt: skip
