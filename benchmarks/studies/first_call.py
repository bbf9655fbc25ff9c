"""Seconds of a process's first calls: imports, forward and backward, with empty caches and with full ones.

It is meant for a GPU: elsewhere PyTorch computes the calls, and only the import times hold.  A line a state:
`empty` caches, `full` ones, and without generated code (`off`), which Helion makes, but with Triton's caches.
Backward starts from a scalar loss, as in training; `backward(gradient)` makes PyTorch import SymPy, 0.3 to
0.6 s more.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.jobs import Row, Table, of_now
from helion_sinkhorn.lab import parent

BATCH = 8192
STATES = {"empty": "empty caches", "full": "warm caches", "off": "no generated code kept"}
STACK = "device", "torch_version", "triton_version", "helion_version"
"""Columns of what a run is of: a later one of the same takes its place in the file."""
CALLS = """
import json, runpy, sys, time
runpy.run_path(sys.argv[4])["end_with_parent"]()
def lap():
    global last
    if "torch" in sys.modules and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    now = time.perf_counter()
    since, last = now - last, now
    return since
n, batch, device = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
last = time.perf_counter()
import torch
laps = {"import torch": lap()}
x, dy = torch.randn(2, batch, n, n, device=device)
x.requires_grad_()
laps["device"] = lap()
import helion_sinkhorn
laps["import helion_sinkhorn"] = lap()
p = helion_sinkhorn.sinkhorn(x, 20)
laps["forward"] = lap()
(p * dy).sum().backward()
laps["backward"] = lap()
assert x.grad.isfinite().all()
print(json.dumps({**laps, "imported Helion": "helion" in sys.modules}))
"""
FOLDERS = ("TRITON_CACHE_DIR", "HELION_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "HELION_SINKHORN_CACHE_DIR")
Laps = dict[str, float]


def first_calls(n: int, device: str, **environment: str) -> Laps:
    """Seconds of each step in a fresh process."""
    command = [sys.executable, "-c", CALLS, str(n), str(BATCH), device, parent.__file__]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"n = {n}: {done.stderr.strip().splitlines()[-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def by_state(n: int, device: str, repeats: int) -> Iterator[tuple[str, Laps]]:
    """(state of the caches, medians of the steps), from empty folders on."""
    with tempfile.TemporaryDirectory() as folder:
        caches = {name: os.path.join(folder, name.lower()) for name in FOLDERS}
        yield "empty", first_calls(n, device, **caches)
        for state, changed in (("full", {}), ("off", {"HELION_SINKHORN_CACHE_DIR": "off"})):
            runs = [first_calls(n, device, **{**caches, **changed}) for _ in range(repeats)]
            yield state, {step: statistics.median(run[step] for run in runs) for step in runs[0]}


def rows(n: int, state: str, laps: Laps) -> Iterator[Row]:
    """The steps after the import of torch, as rows of docs/bench/first_call.csv."""
    made = "Helion imported" if laps["imported Helion"] else "generated code found"
    for step in ("import helion_sinkhorn", "forward", "backward"):
        quantity = f"{step}, {STATES[state]}; {made}"
        yield {"n": n, "batch": BATCH, "quantity": quantity, "seconds": round(laps[step], 3)}


def others(path: Path, now: Row) -> list[Row]:
    """The rows of a file for other devices or stacks."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if any(row[k] != now[k] for k in STACK)]


def main(options: argparse.Namespace) -> None:
    import torch

    from benchmarks.timing import conditions
    from helion_sinkhorn.lab.tuning import markdown

    device = "cuda" if torch.cuda.is_available() else "cpu"
    print(torch.cuda.get_device_name() if device == "cuda" else "no GPU: PyTorch computes the calls")
    steps = "import torch", "device", "import helion_sinkhorn", "forward", "backward"
    print(markdown.head(("n", "caches", *steps, "import torch to gradient", "imported Helion")))
    now = conditions(torch.device(device))
    table = Table(options.write, {**now, **of_now()})
    if options.write:
        table.rows = others(options.write, now)
    for n in options.sizes:
        for state, laps in by_state(n, device, options.repeats):
            for row in rows(n, state, laps):
                table.add(row)
            seconds = [laps[step] for step in steps]
            cells = [f"{s:.2f}" for s in (*seconds, sum(seconds[1:]))]
            print(markdown.line((n, state, *cells, bool(laps["imported Helion"]))), flush=True)
    table.write()
