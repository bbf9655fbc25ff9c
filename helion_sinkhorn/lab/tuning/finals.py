"""Timing candidates against the default and the current entry."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from filelock import FileLock

from helion_sinkhorn.lab.operators import TRIALS
from helion_sinkhorn.lab.tuning.groups import Group, distinct, entry_key, jsonable, same, spelled
from helion_sinkhorn.lab.tuning.timing import Sampler, sampler
from helion_sinkhorn.runtime.kernel import Choice

log = logging.getLogger("helion_sinkhorn")

GAIN = 0.02
"""An incumbent stays unless the winner takes this share less time."""
PASSES = 2
FINALISTS = 3
ROUNDS = {"quick": 7, "full": 21}


def gpu_clock(group: Group, batch: int) -> Callable[[Choice], Sampler]:
    """Samplers of this group's kernel on `batch` matrices of the current GPU."""
    trial = TRIALS[group.kernel]
    operands = trial.operands(group.call, batch, "cuda")

    def prepare(choice: Choice) -> Sampler:
        def run() -> torch.Tensor | tuple[torch.Tensor, ...]:
            return trial.run(group.call, choice, *operands)

        written = run()
        results = written if isinstance(written, tuple) else (written,)
        return sampler(run, sum(t.nbytes for t in (*operands, *results)))

    return prepare


Clock = Callable[[Group, int], Callable[[Choice], Sampler]]
Judge = Callable[[Group, Choice], float]


class Bench(NamedTuple):
    """How the candidates of all keys of a run are timed and judged."""

    clock: Clock
    judge: Judge
    rounds: int
    """Samples of each finalist."""
    turn: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    """Held while anything is timed."""


def gpu_timing_lock() -> contextlib.AbstractContextManager[object]:
    """A lock that the tuners on one GPU share: one at a time samples times.

    It holds for ranks and separate runs alike, under any Triton and with any cache folder, where one user
    starts them with one temporary folder (TMPDIR).  Other tuners may still call candidates for the first time
    or check results meanwhile, which shows in the spread.
    """
    if not torch.cuda.is_available():
        return contextlib.nullcontext()
    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    return FileLock(Path(tempfile.gettempdir()) / f"helion_sinkhorn-{os.getuid()}-{gpu.uuid}.lock")


@functools.lru_cache(maxsize=1024)
def error(call: Any, choice: Choice, device: str) -> float:
    """The largest error of a choice in units of its budget; above 1 it is refused."""
    return TRIALS[choice.kernel].error(call, choice, device)


def on_gpu(group: Group, choice: Choice) -> float:
    """`error` on the current GPU; infinite where the test's own launches do not run."""
    try:
        return error(group.call, choice, "cuda")
    except Exception as failure:  # whatever Helion, Triton or a driver raised
        log.warning("%s: %s cannot be tested: %s", group.name, choice, failure)
        return math.inf


@dataclass
class Result:
    """The result for one key."""

    group: Group
    batch: int
    winner: Choice
    us: float
    default_us: float
    spread: float
    err: float
    old_us: float | None = None
    """The time of the config that calls had before, where that was a stored one."""
    times: list[tuple[Choice, float]] = field(default_factory=list)
    """Microseconds of every candidate, before the finals."""
    seconds: float = 0.0
    path: Path | None = None
    """The file that it was written to."""

    @property
    def entry(self) -> dict[str, Any]:
        return {
            "key": entry_key(self.group, self.batch),
            "config": jsonable(self.winner.config),
            "variant": jsonable(self.winner.variant),
            "evidence": "measured",
            "us": digits(self.us),
            "default_us": digits(self.default_us),
            "spread": round(self.spread, 3),
            "err": round(self.err, 3),
        }

    def __str__(self) -> str:
        return (
            f"{self.group.name} B={self.batch}: {digits(self.us)} us, default {digits(self.default_us)} "
            f"({self.default_us / self.us:.2f}x), err {self.err:.2f}, {len(self.times)} candidates "
            f"in {self.seconds:.1f} s: {spelled(self.winner)}"
        )


def digits(us: float) -> float:
    """A time to four figures, which is as exact as timings are."""
    return float(f"{us:.4g}")


def spread(samples: Sequence[float]) -> float:
    """The distance of the quartiles, relative to the median."""
    low, middle, high = statistics.quantiles(samples, n=4)
    return (high - low) / middle


def tune_key(
    group: Group,
    batch: int,
    choices: Sequence[Choice],
    incumbent: Choice | None,
    bench: Bench,
    budget: float,
) -> Result:
    """Time the choices, the default first, then the best of them against default and incumbent.

    budget: seconds after which no further candidate is prepared.

    Raises:
        RuntimeError: the default itself does not run or is outside the budget of error.
    """
    begin = time.perf_counter()
    judge, prepare = bench.judge, bench.clock(group, batch)
    default = choices[0]
    tried: list[tuple[Choice, Sampler]] = []
    for choice in distinct((default, incumbent, *choices)):
        if len(tried) > 1 and time.perf_counter() - begin > budget:
            break
        try:
            tried.append((choice, prepare(choice)))
        except Exception as refusal:  # whatever Helion, Triton or a driver raised: not a candidate
            if choice is default:
                raise RuntimeError(f"{group.name} B={batch}: the default config does not run") from refusal
            log.warning("%s B=%d: %s does not run: %s", group.name, batch, choice, refusal)
    # every candidate in each pass: what disturbs one pass disturbs all of them
    with bench.turn:
        passes = [[sample() for _, sample in tried] for _ in range(PASSES)]
    times = [min(each) for each in zip(*passes, strict=True)]
    fast = [tried[index][0] for index in sorted(range(len(tried)), key=times.__getitem__)]
    best = list(itertools.islice((c for c in fast if judge(group, c) <= 1), FINALISTS))
    if judge(group, default) > 1:
        raise RuntimeError(f"{group.name}: the default config is outside the error budget")
    seated = incumbent is not None and any(same(c, incumbent) for c in fast) and judge(group, incumbent) <= 1
    finalists = distinct((default, incumbent if seated else None, *best))
    samplers = [next(sample for c, sample in tried if same(c, choice)) for choice in finalists]
    samples: list[list[float]] = [[] for _ in finalists]
    with bench.turn:
        for _ in range(bench.rounds):
            for one, sample in zip(samples, samplers, strict=True):
                one.append(sample())
    us = [statistics.median(one) for one in samples]
    spreads = [spread(one) for one in samples]
    seat = next((i for i, c in enumerate(finalists) if seated and same(c, incumbent)), 0)
    first = min(range(len(finalists)), key=us.__getitem__)
    gain = max(GAIN, spreads[first], spreads[seat])
    kept = first if us[first] <= (1 - gain) * us[seat] else seat
    screened = [(choice, us_once) for (choice, _), us_once in zip(tried, times, strict=True)]
    return Result(
        group, batch, finalists[kept], us[kept], us[0], spreads[kept],
        judge(group, finalists[kept]), us[seat] if seated else None, screened,
        time.perf_counter() - begin,
    )  # fmt: skip
