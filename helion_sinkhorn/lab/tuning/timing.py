"""Timers, in microseconds: of a kernel without what the host adds, as the tuner needs it, and of calls.

What benchmarks/timing.py reports is made of the same parts.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable

import torch

CACHED_BYTES = 40 << 20
"""Calls that touch less find their data in the last-level cache, in a model as in a CUDA graph."""
GRAPH_MICROSECONDS = 2000.0
MOST_CALLS = 50
REPLAYS = 5
FLUSHED_MICROSECONDS = 4000.0
FLUSH_BYTES = 256 << 20
HELD_CYCLES = 400_000
"""0.2 ms on an H200, in which the host queues a call of the tuner."""

Run = Callable[[], object]
Sampler = Callable[[], float]
Events = tuple[torch.cuda.Event, torch.cuda.Event]


def sampler(run: Run, touched: int) -> Sampler:
    """A function that times `run` once more and returns microseconds a call.

    Args:
        run: launches on the current stream, compiled and warm after one call.
        touched: bytes it reads and writes.  Below CACHED_BYTES the calls of a CUDA graph are timed,
            from there on single calls with the cache cleared before each.
    """
    run()
    torch.cuda.synchronize()
    return in_a_graph(run) if touched < CACHED_BYTES else with_cold_cache(run)


def recorded(run: Run) -> Events:
    """What the current stream passes before and after a run."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    return begin, end


def between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return 1e3 * begin.elapsed_time(end)


def timed(run: Run) -> float:
    """One run on the current stream, which is then waited for."""
    events = recorded(run)
    events[1].synchronize()
    return between(*events)


def one_by_one(run: Run, calls: int, before: Run = lambda: None, held: int = HELD_CYCLES) -> list[float]:
    """Calls that the host queues one after the other, `before` ahead of each and not counted.

    held: cycles a call for which the GPU waits first, so that none waits for the host, which compiling
    processes keep busy: calls of 100 us seemed to take 200.
    """
    torch.cuda._sleep(calls * held)
    events = []
    for _ in range(calls):
        before()
        events.append(recorded(run))
    torch.cuda.synchronize()
    return [between(*pair) for pair in events]


def captured(run: Run, calls: int = 1, stream: torch.cuda.Stream | None = None) -> Run:
    """Replays a CUDA graph of some calls; `run`, and so what it reads, has to outlive it."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            run()
    return graph.replay


def in_a_graph(run: Run) -> Sampler:
    """Calls back to back, launched by the device: the median of some replays of one graph.

    `graph` of benchmarks/timing.py takes longer, has quantiles and differentiates; thousands of candidates
    need none of that.
    """
    # from the host a small kernel seems longer than it is: that gives it the most calls
    calls = max(8, min(MOST_CALLS, round(GRAPH_MICROSECONDS / min(timed(run) for _ in range(3)))))
    replay = captured(run, calls)
    replay()
    return lambda: statistics.median(one_by_one(replay, REPLAYS)) / calls


@functools.cache
def flush_buffer(index: int) -> torch.Tensor:
    return torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=f"cuda:{index}")


def with_cold_cache(run: Run) -> Sampler:
    """Single calls, each after a write of FLUSH_BYTES: their median.

    `queued` of benchmarks/timing.py goes round several inputs instead, as a model does: this has one.
    """
    flush = flush_buffer(torch.cuda.current_device())
    calls = max(3, min(40, round(FLUSHED_MICROSECONDS / timed(run))))
    return lambda: statistics.median(one_by_one(run, calls, flush.zero_))


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def on_the_host(run: Run, seconds: float, least: int = 1) -> list[float]:
    """Calls one by one, for so many seconds and at least so many of them: what a CPU computes."""
    samples, end = [], time.perf_counter() + seconds
    while len(samples) < least or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        samples.append(1e6 * (time.perf_counter() - begin))
    return samples


def in_a_row(run: Run, device: torch.device, calls: int, rounds: int, wait: bool = False) -> list[float]:
    """Host time of one of `calls` calls in a row, from an empty queue; `wait` adds the GPU's at the end."""
    samples = []
    for _ in range(rounds):
        synchronize(device)
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        if wait:
            synchronize(device)
        samples.append(1e6 * (time.perf_counter() - begin) / calls)
    synchronize(device)
    return samples
