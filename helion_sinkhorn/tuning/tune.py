"""The tuner: time every candidate of a kernel's space on this device and keep what pays.

Keys that differ in the batch alone share their binaries, so they are tuned as one group: its
candidates are compiled once, by processes of their own (machine.compiler.compile_for, whose binaries
Triton's cache hands over), while the group before is being timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from helion_sinkhorn.configs import writer
from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.operators import KERNELS, operator_of
from helion_sinkhorn.runtime.kernel import Choice, in_space
from helion_sinkhorn.tuning import calibration
from helion_sinkhorn.tuning.compilation import Compilation, count_compilations, launchable
from helion_sinkhorn.tuning.finals import (
    ROUNDS,
    Clock,
    Result,
    digits,
    error,
    gpu_clock,
    gpu_timing_lock,
    tune_key,
)
from helion_sinkhorn.tuning.groups import Group, choice_of, entries_on_disk, entry_key
from helion_sinkhorn.tuning.options import Options
from helion_sinkhorn.tuning.plan import groups_of_rank, within_limit
from helion_sinkhorn.tuning.provenance import device_block, provenance


def tune(
    groups: Sequence[Group],
    options: Options,
    reported: str,
    *,
    clock: Clock = gpu_clock,
    judge: Callable[[Group, Choice], float] | None = None,
    compilation: Callable[..., Any] = Compilation,
    say: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Tune this rank's share of the groups, write after every key, and yield what came of each.

    Args:
        groups: the whole plan, the same on every rank.
        options: of the command.
        reported: the device's name as its driver gives it.
        clock, judge, compilation: how candidates are timed, judged and compiled; the GPU's by default.
        say: where progress goes.
    """
    begin = time.perf_counter()
    device = DEVICES[options.device]
    judge = judge or (lambda group, choice: error(group.call, choice, "cuda"))
    left = groups_of_rank(groups, options)
    compiled = compilation(device, left, options.workers, options.cache)
    missed, turn = count_compilations(), gpu_timing_lock(options.cache)
    try:
        for number, group in within_limit(left, begin, options.limit, say):
            binaries = compiled.binaries(group)
            choices = launchable(binaries)
            run, timed = provenance(group.kernel, "measured", options), []
            say(
                f"[{time.perf_counter() - begin:.0f} s] {number}/{len(left)} {group.name}: "
                f"{len(choices)} of {len(binaries)} candidates; compiled here so far: {missed()}"
            )
            for batch in group.batches:
                if time.perf_counter() - begin > options.limit:
                    break
                have = entries_on_disk(options.out, options.device, group.kernel)
                old = choice_of(group.kernel, have.get(writer.identity({"key": entry_key(group, batch)})))
                if old is not None and not in_space(
                    KERNELS[group.kernel], old, group.call, DEVICES[options.device]
                ):
                    old = None
                try:
                    result = tune_key(
                        group, batch, choices, old, clock, judge, ROUNDS[options.effort], options.budget, turn
                    )
                except RuntimeError as failure:
                    say(f"{failure}: {failure.__cause__ or 'nothing is written for it'}")
                    continue
                writer.merge(options.out, group.kernel, device_block(device, reported), run, [result.entry])
                say(f"  {result}")
                timed.append((result.batch, result.times))
                yield result
            if score := operator_of(group.kernel).score:
                path = options.out / options.device / calibration.FILE
                calibration.record(path, score, group.kernel, group.call, binaries, timed)
    finally:
        compiled.stop()


def report(results: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of the table at the end: key, old, new, default, gain over the default."""
    return [
        (
            r.group.name, str(r.batch), f"{digits(r.old_us)}" if r.old_us else "-", f"{digits(r.us)}",
            f"{digits(r.default_us)}", f"{r.default_us / r.us:.2f}",
        )
        for r in results
    ]  # fmt: skip
