"""Microseconds of a kernel on a GPU, without what the host adds."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

import torch

CACHED_BYTES = 32 << 20
"""Calls that touch less find their data in the last-level cache, in a model as in a CUDA graph."""
GRAPH_MICROSECONDS = 2000.0
MOST_CALLS = 50
REPLAYS = 5
FLUSHED_MICROSECONDS = 4000.0
FLUSH_BYTES = 256 << 20

Sampler = Callable[[], float]


def sampler(run: Callable[[], object], touched: int) -> Sampler:
    """A function that times `run` once more and returns microseconds a call.

    Args:
        run: launches on the current stream, compiled and warm after one call.
        touched: bytes it reads and writes.  Below CACHED_BYTES the calls of a CUDA graph are timed,
            from there on single calls with the cache cleared before each.
    """
    run()
    torch.cuda.synchronize()
    return in_a_graph(run) if touched < CACHED_BYTES else with_cold_cache(run)


def between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return 1e3 * begin.elapsed_time(end)


def timed(run: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    run()
    end.record()
    end.synchronize()
    return between(begin, end)


def in_a_graph(run: Callable[[], object]) -> Sampler:
    """Calls back to back, launched by the device: the median of some replays of one graph."""
    # from the host a small kernel seems longer than it is: that gives it the most calls
    calls = max(8, min(MOST_CALLS, round(GRAPH_MICROSECONDS / min(timed(run) for _ in range(3)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            run()
    graph.replay()
    return lambda: statistics.median(timed(graph.replay) for _ in range(REPLAYS)) / calls


@functools.cache
def flush_buffer(index: int) -> torch.Tensor:
    return torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=f"cuda:{index}")


def with_cold_cache(run: Callable[[], object]) -> Sampler:
    """Single calls, each behind a write of FLUSH_BYTES: their median."""
    flush = flush_buffer(torch.cuda.current_device())
    calls = max(3, min(40, round(FLUSHED_MICROSECONDS / timed(run))))

    def sample() -> float:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(calls)]
        for begin, end in events:
            flush.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize()
        return statistics.median(between(*pair) for pair in events)

    return sample
