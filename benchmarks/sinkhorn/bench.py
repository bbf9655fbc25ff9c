"""Time forward and exact backward beside a copy of the same bytes, PyTorch, torch.compile and peers.

    python -m benchmarks.sinkhorn.bench --out docs/bench              # about 6 minutes on one H200
    python -m benchmarks.sinkhorn.bench --quick                       # the main series, under 90 s
    python -m benchmarks.sinkhorn.bench --report-only docs/bench/bench.csv --out docs/bench   # no GPU

Writes bench.csv, after every job, and from it report.md and plots.  Times are medians with 20 %
and 80 % quantiles; configs are those `sinkhorn` takes by itself.  Nothing is downloaded: a peer
that is not installed is reported as left out.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from json import loads
from pathlib import Path

from benchmarks.sinkhorn.worker import Job, encode

LARGEST_BYTES = 8 << 30
"""Most bytes of logits, upstream gradient and result together; larger batches are skipped."""
PREPARE_SECONDS = {"helion_sinkhorn": 120.0, "torch.compile": 180.0}
"""Until a job must be ready; 60 for others.  torch.compile unrolls T iterations."""
MEASURE_SECONDS = 90.0
LIMITS = {"quick": 85.0, "full": 465.0}
FIRST_COLUMNS = (
    "section", "function", "n", "batch", "dtype", "iterations", "pass", "timer", "us", "us_20", "us_80",
    "quantity", "bytes", "seconds", "error", "gradient_error", "note", "package_version",
)  # fmt: skip

Row = dict[str, object]


def powers(*exponents: int) -> tuple[int, ...]:
    return tuple(1 << e for e in exponents)


FULL = {
    4: powers(7, 10, 12, 13, 15, 17, 18, 20, 22),
    8: powers(7, 10, 13, 15, 17, 18, 20, 22),
    16: powers(7, 10, 13, 16, 18, 20, 22),
    32: powers(14),
    64: powers(7, 10, 12, 14, 16, 18),
    128: powers(10),
}
QUICK = {4: powers(7, 13, 17, 18, 20), 8: powers(13, 18), 16: powers(13, 16), 64: powers(10, 12)}
SMOKE = {4: powers(5, 7), 8: powers(5)}
PEER_BATCHES = {4: powers(12, 17, 20), 8: powers(17)}


def waves(mode: str, device: str, with_compile: bool, with_peers: bool) -> list[list[Job]]:
    """Jobs that get ready together, in the order in which they are measured."""
    from benchmarks.sinkhorn import peers

    smoke = device != "cuda"
    shapes = SMOKE if smoke else {"quick": QUICK, "full": FULL}[mode]
    short = 2.0 if smoke else 20.0
    base = Job("sweep", "sweep", (peers.FLOOR, peers.OURS), device=device, milliseconds=short)

    def fitting(n: int, batches: tuple[int, ...], size: int) -> tuple[int, ...]:
        return tuple(b for b in batches if 3 * size * n * n * b <= LARGEST_BYTES)

    own = [replace(base, n=n, batches=fitting(n, batches, 4)) for n, batches in shapes.items()]
    own.append(replace(base, section="host", task="host", functions=()))
    own.append(replace(base, section="lanes", task="lanes", functions=(), batches=(32, 128)))
    own.append(replace(base, section="memory", task="memory", functions=(),
                       batches=(1 << (7 if smoke else 20),)))  # fmt: skip
    if mode == "quick":
        return [own]
    few = SMOKE if smoke else {4: powers(13, 20), 8: powers(18)}
    variants = [
        replace(base, n=n, batches=batches, dtype=dtype, functions=functions)
        for n, batches in few.items()
        for dtype, functions in (
            ("bfloat16", (peers.FLOOR, peers.OURS)),
            ("float32", (f"{peers.OURS} log",)),
        )
    ]
    others = ["eager", *(peers.PEERS if with_peers else ())]
    sizes = SMOKE if smoke else PEER_BATCHES
    # a pass of eager PyTorch takes 15 ms: enough of them
    longer = {"eager": 3 * short}
    beside = [
        replace(base, functions=(name,), n=n, batches=batches, milliseconds=longer.get(name, short))
        for name in others
        for n, batches in sizes.items()
        if not peers.FUNCTIONS[name].sizes or n in peers.FUNCTIONS[name].sizes
    ]
    if with_compile:
        # it compiles anew for every batch: side by side
        beside += [
            replace(base, functions=(peers.COMPILED,), n=n, batches=(batch,), milliseconds=3 * short)
            for n, batches in sizes.items()
            for batch in batches
        ]
    return [own, variants, beside, [replace(base, section="first call", task="first calls", functions=())]]


class Child:
    """The process of one job."""

    def __init__(self, job: Job):
        self.job, self.begin, self.why = job, time.perf_counter(), ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.sinkhorn.worker", encode(job)],
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
        return loads(line) if line.endswith("\n") else None

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
        """Its rows; stopped after `limit` seconds."""
        with stopping(self, limit, f"stopped after {limit:.0f} s of measuring"):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
            while isinstance(answer := self.read(), dict):
                if "failed" in answer:
                    self.why = answer["failed"]
                    break
                yield answer
        self.stop("" if answer == "end" or self.why else "died while measuring")


class stopping:
    """A child that is stopped unless the block ends in time."""

    def __init__(self, child: Child, seconds: float, why: str):
        self.timer = threading.Timer(max(0.1, seconds), child.stop, [why])

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()


class Table:
    """The rows so far, written out after every job."""

    def __init__(self, path: Path, run: Row):
        self.path, self.run, self.rows = path, run, []

    def write(self) -> None:
        seen = dict.fromkeys(k for r in self.rows for k in r)
        columns = [*(c for c in FIRST_COLUMNS if c in seen), *(c for c in seen if c not in FIRST_COLUMNS)]
        part = self.path.with_suffix(".part")
        with part.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        part.replace(self.path)

    def add(self, row: Row) -> None:
        us = {k: f"{row[k]:.4g}" for k in ("us", "us_20", "us_80") if k in row}
        self.rows.append({**row, **us, **self.run})

    def leave_out(self, job: Job, why: str) -> None:
        shape = {"n": job.n, "dtype": job.dtype} if job.functions else {}
        for function in job.functions or (job.section,):
            self.add({"section": "left out", "function": function, **shape, "note": why})


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
    """Wait for every child, then let them measure one at a time."""
    waiting = []
    for child in children:
        limit = PREPARE_SECONDS.get((child.job.functions or ("",))[-1], 60.0)
        if child.ready(min(limit, child_age(child) + left())):
            waiting.append(child)
        else:
            say(f"left out: {child.job.title}: {child.why}")
            table.leave_out(child.job, child.why)
    for child in waiting:
        count = 0
        for row in child.measure(min(MEASURE_SECONDS, left())):
            table.add(row)
            count += 1
        if child.why:
            table.leave_out(child.job, child.why)
        say(f"{child.job.title}: {count} rows{'; ' + child.why if child.why else ''}")
        table.write()


def child_age(child: Child) -> float:
    return time.perf_counter() - child.begin


def render(path: Path, out: Path) -> None:
    try:
        from benchmarks.sinkhorn import report
    except ModuleNotFoundError as error:
        print(f"no report: {error}; install .[bench] and run with --report-only {path} --out {out}")
        return
    report.render(path, out)
    print(f"wrote {out}/report.md")


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("build/bench"), help="folder (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="fewer batches, no compile, no peers")
    parser.add_argument("--report-only", type=Path, metavar="CSV", help="render this file, measure nothing")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--no-peers", action="store_true", help="leave other packages out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: tiny smoke run")
    parser.add_argument("--limit", type=float, help="seconds in all (default 465; quick 85)")
    options = parser.parse_args()
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.report_only:
        render(options.report_only, out)
        return
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no GPU; --device cpu runs the same code on tiny batches, "
                     "--report-only CSV renders an earlier run")  # fmt: skip
    mode = "quick" if options.quick else "full"
    utc = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    table = Table(out / "bench.csv", {"mode": mode, "commit": commit(), "utc": utc})
    from benchmarks.sinkhorn import peers

    if mode == "full":
        for name, why in peers.LEFT_OUT.items():
            table.add({"section": "left out", "function": name, "note": why})
    jobs = waves(mode, options.device, not options.no_compile, not options.no_peers)
    measure(table, jobs, options.limit or LIMITS[mode], workers=2 * (os.cpu_count() or 1))
    table.write()
    render(table.path, out)


if __name__ == "__main__":
    main()
