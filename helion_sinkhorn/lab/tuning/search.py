"""EFFORT=full: Helion's own search from what the tuner found, beyond the points of the kernels' spaces."""

from __future__ import annotations

import contextlib
import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary, Job
from helion_sinkhorn.lab.machine.compiler import Compiler
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.tuning.compilation import Compilation
from helion_sinkhorn.lab.tuning.finals import (
    FINALISTS,
    PASSES,
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
from helion_sinkhorn.lab.tuning.groups import Group, distinct, same, spelled
from helion_sinkhorn.lab.tuning.options import Options
from helion_sinkhorn.lab.tuning.timing import Sampler
from helion_sinkhorn.runtime.kernel import Choice, default_choice
from helion_sinkhorn.runtime.space import Items

SECONDS = 120.0
"""The most seconds for the search of one key."""
SHARE = 0.75
"""The search's share of a key's part of the budget; the finals, of five candidates at most, take seconds."""
BINDING_SECONDS = 60.0
GAIN = 0.01
"""The search goes on from a point that takes this share less time than the one before."""

SOURCE = "Helion's search"
Around = Callable[[Group, Choice], Sequence[Items]]
"""A function that returns configs around that of a choice."""
Points = list[tuple[Choice, float]]
"""Choices and their microseconds."""


@contextlib.contextmanager
def helion_space(device_key: str) -> Iterator[Around]:
    """Configs around one in Helion's space, by a process that takes this machine's device for that one."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Compiler(device_key, Path(folder), BINDING_SECONDS) as compiler,
    ):
        yield lambda group, choice: compiler.neighbours(Job(group.call, choice))


def search(
    results: Sequence[Result],
    options: Options,
    *,
    clock: Clock = gpu_clock,
    judge: Judge = on_gpu,
    compilation: Callable[..., Any] = Compilation,
    space: Callable[[str], contextlib.AbstractContextManager[Around]] = helion_space,
    say: Callable[[str], None] = print,
) -> Iterator[Result]:
    """Search from what `tune` timed, and yield the finals of keys where a config outside of the space won.

    Nothing is written: a call refuses a config that its kernel's space lacks.  Each key may take its part of
    the seconds left.  Arguments as in `tune`; space: the neighbours of a config on a device.
    """
    device, bench = DEVICES[options.device], Bench(clock, judge, ROUNDS[options.effort], gpu_timing_lock())
    with space(options.device) as around:
        for number, result in enumerate(results):
            group = result.group
            end = time.monotonic() + min(SECONDS, SHARE * options.left / (len(results) - number))
            try:
                prepare = clock(group, result.batch)
            except RuntimeError as failure:
                say(f"  {group.name} B={result.batch}: not searched ({failure})")
                continue

            def timed(choices: Sequence[Choice], group=group, prepare=prepare, end=end) -> Points:
                compiled = compilation(device, [group], options.workers, options.cache, choices)
                try:
                    return list(times_of(compiled.as_ready(group, end), prepare, bench.turn))
                finally:
                    compiled.stop()

            points = beyond(result, around, timed, end)
            right = (c for c, _ in sorted(points, key=by_time) if judge(group, c) <= 1)
            best = itertools.islice(right, FINALISTS)
            default = default_choice(KERNELS[group.kernel], group.call, device)
            finals = tune_key(group, result.batch, [default, *best], result.winner, bench, math.inf)
            say(
                f"  {group.name} B={result.batch}: {len(points)} configs of Helion's space; "
                f"{digits(result.us)} us stored, {digits(finals.us)} us the best"
            )
            if not any(same(finals.winner, choice) for choice in (default, result.winner)):
                yield finals


def beyond(result: Result, around: Around, timed: Callable[[Sequence[Choice]], Points], end: float) -> Points:
    """Pattern search from the fastest points of a key: what it timed.

    All neighbours of a point are timed; the search goes on from the fastest of them while that gains, then
    from the next of the tuner's points, until `end` on time.monotonic's clock.
    """
    seen = [choice for choice, _ in result.times]
    points: Points = []
    for start, us in sorted(result.times, key=by_time)[:FINALISTS]:
        point, best = start, us
        while time.monotonic() < end:
            configs = around(result.group, point)
            others = distinct(Choice(point.kernel, config, point.variant, SOURCE) for config in configs)
            new = [choice for choice in others if not any(same(choice, old) for old in seen)]
            seen += new
            times = timed(new) if new else []
            points += times
            fastest = min(times, key=by_time, default=(point, best))
            if fastest[1] > (1 - GAIN) * best:
                break
            point, best = fastest
    return points


def by_time(point: tuple[Choice, float]) -> float:
    return point[1]


def times_of(
    binaries: Iterable[Binary],
    prepare: Callable[[Choice], Sampler],
    turn: contextlib.AbstractContextManager[object],
) -> Iterator[tuple[Choice, float]]:
    """Microseconds of the binaries that run and have no problems; turn: held while one is timed."""
    for binary in binaries:
        if binary.problems:
            continue
        choice = binary.job.choice
        with contextlib.suppress(Exception):  # whatever Helion, Triton or a driver raised: not a candidate
            sample = prepare(choice)
            with turn:
                us = min(sample() for _ in range(PASSES))
            yield choice, us


COLUMNS = ["key", "batch", "stored", "found", "stored / found", "error", "config"]


def report(finals: Sequence[Result]) -> list[tuple[str, ...]]:
    """Rows of a table, of COLUMNS: microseconds of what is stored and of what is outside of its space."""
    return [
        (
            r.group.name, str(r.batch), str(digits(r.old_us)), str(digits(r.us)), f"{r.old_us / r.us:.2f}",
            f"{r.err:.2f}", spelled(r.winner),
        )
        for r in finals
    ]  # fmt: skip
