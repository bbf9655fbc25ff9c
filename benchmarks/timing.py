"""Timers: one eager call with L2 cleared, one that is queued, one of a CUDA graph, host time, and clocks."""

from __future__ import annotations

import itertools
import platform
import statistics
from collections.abc import Callable, Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from helion_sinkhorn.configs import store
from helion_sinkhorn.lab.tuning.provenance import output_of
from helion_sinkhorn.lab.tuning.timing import Run, captured, on_the_host, one_by_one, timed

GRAPH_CALLS = 50
"""Most calls in one graph: what starting the graph costs is then a fiftieth of itself."""
MOST_MICROSECONDS = 10_000.0
"""Longest that the calls in one graph take together, unless it is one call."""
QUEUED_CALLS = 24
QUEUED_CYCLES = 2_100_000
"""The GPU waits so long for each of them, some 25 ms in all, while the host queues them."""
GRAPH_MILLISECONDS = 30.0
Times = tuple[float, float, float]
"""Median, 20 % and 80 % quantile in microseconds."""


def summary(samples: list[float]) -> Times:
    """Times of samples in microseconds."""
    deciles = statistics.quantiles(samples, n=10, method="inclusive") if len(samples) > 1 else samples * 9
    return statistics.median(samples), deciles[1], deciles[7]


def named(times: Times) -> dict[str, float]:
    """As columns of a row."""
    return dict(zip(("us", "us_20", "us_80"), times, strict=True))


def single_calls(run: Run, device: torch.device, milliseconds: float) -> list[float]:
    """Microseconds of calls as Python makes them: with the host in them where it is slower than the GPU."""
    if device.type == "cuda":
        from triton.testing import do_bench

        return [1e3 * t for t in do_bench(run, warmup=5, rep=milliseconds, return_mode="all")]
    run()
    return on_the_host(run, milliseconds / 1e3)


def eager(run: Run, device: torch.device, milliseconds: float) -> Times:
    """One of `single_calls`."""
    return summary(single_calls(run, device, milliseconds))


def waited_for(run: Run, device: torch.device, calls: int = 9) -> float:
    """Median microseconds of single calls, for each of which a GPU waits."""
    if device.type != "cuda":
        return statistics.median(on_the_host(run, 0.0, calls))
    torch.cuda.synchronize()
    return statistics.median(timed(run) for _ in range(calls))


def captures(device: torch.device) -> bool:
    """Whether calls can be queued ahead there, and captured in a graph."""
    return device.type == "cuda"


def ready(make: Callable[[], Run]) -> tuple[Run, torch.cuda.Stream]:
    """A call that ran once, and the stream for its capture.

    `make` runs on that stream, on which autograd then places backward passes too.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run = make()
        run()
    stream.synchronize()
    return run, stream


def graph(make: Callable[[], Run], milliseconds: float) -> Times:
    """One of up to GRAPH_CALLS calls in a CUDA graph, from `ready`: no host, inputs in L2 where they fit.

    `in_a_graph` of the tuner is shorter and has one figure: a report needs quantiles and backward passes.
    """
    run, stream = ready(make)
    with torch.cuda.stream(stream):
        calls = max(1, min(GRAPH_CALLS, int(MOST_MICROSECONDS / timed(run))))
    replay = captured(run, calls, stream)
    replay()
    torch.cuda.synchronize()
    samples, spent = [], 0.0
    while spent < 1e3 * milliseconds or len(samples) < 5:
        spent += (one := timed(replay))
        samples.append(one / calls)
    return summary(samples)


def in_turn(runs: Sequence[Run]) -> Run:
    """Calls the next one each time: of inputs larger than the cache together none finds its own there."""
    turn = itertools.cycle(runs)
    return lambda: next(turn)()


def queued(run: Run) -> Times:
    """A call, one of several that the host has queued before the first begins: none waits for the host.

    `with_cold_cache` of the tuner clears the cache instead of going round inputs: its one figure is for
    comparing candidates.
    """
    run()
    torch.cuda.synchronize()
    return summary(one_by_one(run, QUEUED_CALLS, held=QUEUED_CYCLES))


def launches(run: Run, calls: int = 1) -> list[tuple[str, float]]:
    """Kernels that calls launch, copies and fills among them: name and microseconds of each, in their order.

    The profiler stays attached: every launch after it takes longer.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
    events = sorted(profiler.events(), key=lambda event: event.time_range.start)
    on_gpu = (event for event in events if event.device_type == torch.autograd.DeviceType.CUDA)
    return [(event.name, event.device_time_total) for event in on_gpu]


def conditions(device: torch.device) -> dict[str, object]:
    """Device, driver, versions and the clocks of this moment: columns of every row."""
    row: dict[str, object] = {f"{name}_version": store.installed(name) for name in ("torch", "helion")}
    row["triton_version"] = store.installed_triton()
    row["python_version"] = platform.python_version()
    if device.type != "cuda":
        return {"device": platform.processor() or platform.machine(), **row}
    row["device"] = torch.cuda.get_device_name(device)
    row["runtime"] = f"rocm {torch.version.hip}" if torch.version.hip else f"cuda {torch.version.cuda}"
    return {**row, **clocks(f"GPU-{torch.cuda.get_device_properties(device).uuid}")}


def clocks(gpu: str) -> dict[str, object]:
    """What nvidia-smi says of a GPU, by its identifier; nothing where there is no nvidia-smi."""
    fields = {
        "driver": "driver_version", "sm_mhz": "clocks.sm", "memory_mhz": "clocks.mem",
        "celsius": "temperature.gpu",
    }  # fmt: skip
    query = f"--query-gpu={','.join(fields.values())}"
    said = output_of("nvidia-smi", f"--id={gpu}", query, "--format=csv,noheader,nounits")
    return dict(zip(fields, said.split(", "), strict=False)) if said else {}
