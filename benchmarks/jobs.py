"""Jobs of a benchmark, each a process with a time limit: they get ready side by side and measure in turn.

`measure` runs waves of jobs and writes every row to a CSV at once; benchmarks/worker.py is the child.
Between them go lines of JSON: "ready", the rows, "next" where the child lets others have a turn, "end", or
what failed.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

MEASURE_SECONDS = 90.0
Row = dict[str, object]


class Job(Protocol):
    """What one child does: a dataclass named Job of a module, its fields go to the child as JSON."""

    @property
    def title(self) -> str: ...

    @property
    def prepare_seconds(self) -> float:
        """Until it must be ready."""

    def left_out(self) -> list[Row]:
        """A row for each result that is missing where the job fails."""

    def rows(self) -> Iterator[Row | None]:
        """What benchmarks.worker sends."""


class Child:
    """The process of one job."""

    def __init__(self, job: Job):
        self.job, self.begin, self.why = job, time.perf_counter(), ""
        self.has_more = True
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", type(job).__module__, json.dumps(asdict(job))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def stop(self, why: str = "") -> None:
        """End it and whatever compilers it started."""
        self.why = self.why or why
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def read(self) -> object:
        """The next answer; None at the end."""
        line = self.process.stdout.readline()
        return json.loads(line) if line.endswith("\n") else None

    def ready(self, limit: float) -> bool:
        """Whether it got ready within `limit` seconds of its start."""
        left = max(0.1, limit - (time.perf_counter() - self.begin))
        with stopping(self, left, f"not ready after {limit:.0f} s"):
            answer = self.read()
        if answer == "ready":
            return True
        self.stop(answer["failed"] if isinstance(answer, dict) else "died while getting ready")
        return False

    def measure(self, limit: float):
        """The rows of one turn; stopped after `limit` seconds.  `has_more` says whether it has another."""
        self.has_more = False
        if limit <= 0:
            self.stop("no time was left in the run")
            return
        with stopping(self, limit, f"stopped after {limit:.0f} s of measuring"):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            while isinstance(answer := self.read(), dict):
                if "failed" in answer:
                    self.why = answer["failed"]
                    break
                yield answer
        self.has_more = answer == "next"
        if not self.has_more:
            self.stop("" if answer == "end" or self.why else "died while measuring")


@contextlib.contextmanager
def stopping(child: Child, seconds: float, why: str) -> Iterator[None]:
    """A child that is stopped unless the block ends in time."""
    timer = threading.Timer(max(0.1, seconds), child.stop, [why])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Table:
    """The rows so far, written out after every job."""

    def __init__(self, path: Path, run: Row, first_columns: tuple[str, ...] = ()):
        self.path, self.run, self.rows, self.first = path, run, [], first_columns

    def write(self) -> None:
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
    """The columns of a run that says which source it measured, and when."""
    return {"commit": commit(), "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}


def commit() -> str:
    """The commit of the source measured, marked where it was edited."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


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
