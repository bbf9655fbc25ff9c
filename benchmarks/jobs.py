"""Jobs of a benchmark, each a process with a time limit: they get ready side by side and measure in turn.

`measure` runs waves of jobs and writes every row to a CSV at once.  A child sends rows, None when it is ready
and at the end of a turn, and as its last word why it failed, or an empty string.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import gc
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

from helion_sinkhorn.lab.parent import end_with_parent
from helion_sinkhorn.lab.tuning.provenance import output_of

HERE = Path(__file__).resolve().parent
MEASURE_SECONDS = 90.0
WARMUP_MILLISECONDS, MILLISECONDS = 1, 5
"""Milliseconds for each config, instead of Triton's 25 and 100: other packages' kernels have up to 48
configs.
"""
Row = dict[str, object]


class Job:
    """What one child does: a dataclass of a module that the child imports, which has a `title`."""

    prepare_seconds = 300.0
    """Until it must be ready."""

    def left_out(self) -> list[Row]:
        """A row for each result that is missing where the job fails."""
        raise NotImplementedError

    def rows(self) -> Iterator[Row | None]:
        """What runs before the first, empty yield may disturb other jobs; every later yield is a row, or None
        for the end of a turn."""
        raise NotImplementedError


def work(job: Job, parent: Connection) -> None:
    """The child: it gets ready, waits for its turns, and sends the rows of each."""
    os.setsid()
    end_with_parent()
    # imported packages may print: stdout is the parent's
    os.dup2(2, 1)
    try:
        rows = job.rows()
        next(rows)
        parent.send(None)
        parent.recv()
        choose_again()
        for row in rows:
            parent.send(row)
            if row is None:
                parent.recv()
        parent.send("")
    except Exception as error:
        if not isinstance(error, ImportError):
            traceback.print_exc()
        parent.send(said(error))


def choose_again() -> None:
    """Let every autotuned kernel of this process choose again at its next call.

    Jobs that get ready side by side disturb each other's choices.  Compiled code is kept.
    """
    if "triton.runtime.autotuner" not in sys.modules:
        return
    from triton.runtime.autotuner import Autotuner
    from triton.testing import do_bench

    # some objects object to isinstance
    for autotuner in [o for o in gc.get_objects() if type(o) is Autotuner]:
        autotuner.cache.clear()
        autotuner.do_bench = functools.partial(do_bench, warmup=WARMUP_MILLISECONDS, rep=MILLISECONDS)


class Child:
    """The process of one job."""

    def __init__(self, job: Job):
        self.job, self.begin, self.why = job, time.perf_counter(), ""
        self.has_more = True
        # a child that is forked cannot use the GPU of its parent
        spawn = multiprocessing.get_context("spawn")
        self.pipe, end = spawn.Pipe()
        self.process = spawn.Process(target=work, args=(job, end))
        self.process.start()
        end.close()

    def stop(self, why: str = "") -> None:
        """End it and whatever compilers it started."""
        self.why, self.has_more = self.why or why, False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.join()

    def answer(self, seconds: float, late: str) -> Row | str | None:
        """What it sends next, within so many seconds; `late` where it does not."""
        try:
            return self.pipe.recv() if self.pipe.poll(max(0.1, seconds)) else late
        except (EOFError, OSError):
            return "died"

    def ready(self, limit: float) -> bool:
        """Whether it got ready within `limit` seconds of its start."""
        left = limit - (time.perf_counter() - self.begin)
        answer = self.answer(left, f"not ready after {limit:.0f} s")
        if answer is not None:
            self.stop(answer)
        return answer is None

    def measure(self, limit: float) -> Iterator[Row]:
        """The rows of one turn; stopped after `limit` seconds.  `has_more` says whether it has another."""
        if limit <= 0:
            return self.stop("no time was left in the run")
        end, late = time.perf_counter() + limit, f"stopped after {limit:.0f} s of measuring"
        with contextlib.suppress(OSError):
            self.pipe.send("go")
        while isinstance(answer := self.answer(end - time.perf_counter(), late), dict):
            yield answer
        if answer is not None:
            self.stop(answer)


class Table:
    """The rows so far, written out after every job; without a path they are only kept."""

    def __init__(self, path: Path | None, run: Row, first_columns: tuple[str, ...] = ()):
        self.path, self.run, self.rows, self.first = path, run, [], first_columns

    def write(self) -> None:
        if self.path is None:
            return
        seen = dict.fromkeys(k for r in self.rows for k in r)
        columns = [*(c for c in self.first if c in seen), *(c for c in seen if c not in self.first)]
        part = self.path.with_suffix(".part")
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        part.replace(self.path)

    def add(self, row: Row) -> None:
        us = {k: f"{v:.4g}" for k, v in row.items() if k.startswith("us") and isinstance(v, float)}
        self.rows.append({**row, **us, **self.run})

    def leave_out(self, job: Job, why: str) -> None:
        for row in job.left_out():
            self.add({**row, "section": "left out", "note": why})


def of_now() -> Row:
    """The columns of a run that says which source it measured, marked where it was edited, and when."""
    commit = output_of("git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12")
    return {"commit": commit, "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def measure(table: Table, jobs: list[list[Job]], limit: float, workers: int) -> None:
    """Run all waves within `limit` seconds; what does not fit is left out with that reason."""
    begin = time.perf_counter()

    def say(text: str) -> None:
        print(f"[{time.perf_counter() - begin:6.1f} s] {text}", flush=True)

    def left() -> float:
        return limit - (time.perf_counter() - begin)

    queue = [wave[i : i + workers] for wave in jobs for i in range(0, len(wave), workers)]
    for wave in queue:
        if left() < 5:
            for job in wave:
                table.leave_out(job, f"no time left of {limit:.0f} s")
            continue
        say(f"getting ready: {len(wave)} jobs")
        children = [Child(job) for job in wave]
        try:
            run_wave(table, children, left, say)
        finally:
            for child in children:
                child.stop()
        table.write()


def run_wave(table: Table, children: list[Child], left, say) -> None:
    """Wait for every child, then let them measure one at a time, in as many turns as they take."""
    waiting = []
    for child in children:
        age = time.perf_counter() - child.begin
        if child.ready(min(child.job.prepare_seconds, age + left())):
            waiting.append(child)
        else:
            say(f"left out: {child.job.title}: {child.why}")
            table.leave_out(child.job, child.why)
    counts = dict.fromkeys(waiting, 0)
    while waiting:
        for child in waiting:
            for row in child.measure(min(MEASURE_SECONDS, left())):
                table.add(row)
                counts[child] += 1
            if child.has_more:
                continue
            if child.why:
                table.leave_out(child.job, child.why)
            say(f"{child.job.title}: {counts[child]} rows{'; ' + child.why if child.why else ''}")
            table.write()
        waiting = [child for child in waiting if child.has_more]


def said(error: BaseException) -> str:
    """The first line of an error, with its type."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
