"""Timers: one eager call with L2 cleared, one that is queued, one of a CUDA graph, host time, and clocks."""

from __future__ import annotations

import itertools
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version

import torch

QUANTILES = [0.5, 0.2, 0.8]
GRAPH_CALLS = 50
"""Most calls in one graph: what starting the graph costs is then a fiftieth of itself."""
QUEUED_CALLS = 24
QUEUED_CYCLES = 50_000_000
"""The GPU waits so long, some 25 ms, while the host queues QUEUED_CALLS."""
GRAPH_MILLISECONDS = 30.0
Run = Callable[[], object]
Times = tuple[float, float, float]
"""Median, 20 % and 80 % quantile in microseconds."""


def summary(samples: list[float]) -> Times:
    """Times of samples in seconds."""
    deciles = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else samples * 9
    return 1e6 * statistics.median(samples), 1e6 * deciles[1], 1e6 * deciles[7]


def eager(run: Run, device: torch.device, milliseconds: float) -> Times:
    """One call as Python makes it: with the host in it where the host is slower than the GPU."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return tuple(1e3 * t for t in do_bench(run, warmup=5, rep=milliseconds, quantiles=QUANTILES))
    run()
    samples, end = [], time.perf_counter() + milliseconds / 1e3
    while not samples or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        samples.append(time.perf_counter() - start)
    return summary(samples)


def graph(make: Callable[[], Run], milliseconds: float) -> Times:
    """One of up to GRAPH_CALLS calls in a CUDA graph: no host, inputs in L2 where they fit.

    `make` runs on the stream of the capture, on which autograd then places backward passes too.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        run = make()
        run()
        start.record()
        run()
        end.record()
    stream.synchronize()
    calls = max(1, min(GRAPH_CALLS, int(10 / start.elapsed_time(end))))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured, stream=stream):
        for _ in range(calls):
            run()
    captured.replay()
    torch.cuda.synchronize()
    samples, spent = [], 0.0
    while spent < milliseconds / 1e3 or len(samples) < 5:
        start.record()
        captured.replay()
        end.record()
        end.synchronize()
        samples.append(start.elapsed_time(end) / 1e3 / calls)
        spent += samples[-1] * calls
    return summary(samples)


def in_turn(runs: Sequence[Run]) -> Run:
    """Calls the next one each time: of inputs larger than the cache together none finds its own there."""
    turn = itertools.cycle(runs)
    return lambda: next(turn)()


def queued(run: Run) -> Times:
    """A call, one of several that the host has queued before the first begins: none waits for the host."""
    run()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(QUEUED_CALLS)]
    torch.cuda.synchronize()
    torch.cuda._sleep(QUEUED_CYCLES)
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return summary([begin.elapsed_time(end) / 1e3 for begin, end in events])


def queued_and_graph(make: Callable[[], Run]) -> tuple[Times, float]:
    """(`queued`, the median of `graph`)."""
    found = queued(make())
    return found, graph(make, GRAPH_MILLISECONDS)[0]


def loop(run: Run, device: torch.device, calls: int, wait: bool = False, rounds: int = 9) -> Times:
    """Host time of one of `calls` calls in a row, from an empty queue; `wait` adds the GPU's at the end."""
    samples = []
    for _ in range(rounds):
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            run()
        if wait:
            synchronize(device)
        samples.append((time.perf_counter() - start) / calls)
    synchronize(device)
    return summary(samples)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def installed(package: str) -> str:
    """Its version; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def conditions(device: torch.device) -> dict[str, object]:
    """Device, driver, versions and the clocks of this moment: columns of every row."""
    row: dict[str, object] = {f"{name}_version": installed(name) for name in ("torch", "triton", "helion")}
    row["python_version"] = platform.python_version()
    if device.type != "cuda":
        return {"device": platform.processor() or platform.machine(), **row}
    row["device"] = torch.cuda.get_device_name(device)
    row["runtime"] = f"rocm {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    return {**row, **clocks()}


def clocks() -> dict[str, object]:
    """What nvidia-smi says of the first GPU; nothing where there is no nvidia-smi."""
    fields = {
        "driver": "driver_version",
        "sm_mhz": "clocks.sm",
        "memory_mhz": "clocks.mem",
        "celsius": "temperature.gpu",
    }
    command = ["nvidia-smi", f"--query-gpu={','.join(fields.values())}", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(fields, said.splitlines()[0].split(", "), strict=False))
