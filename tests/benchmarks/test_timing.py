"""The timers: how often they call, and that their figures fit what is timed."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks import timing
from helion_sinkhorn.lab.tuning import timing as parts

CPU = torch.device("cpu")


def test_quantiles_of_samples():
    assert timing.summary([float(k) for k in range(11)]) == (5.0, 2.0, 8.0)
    assert timing.summary([3.0]) == (3.0, 3.0, 3.0)


def test_a_call_on_a_cpu():
    calls = []
    assert len(parts.on_the_host(lambda: calls.append(0), seconds=0.0, least=5)) == len(calls) == 5
    median, low, high = timing.eager(lambda: time.sleep(1e-3), CPU, milliseconds=20.0)
    assert 1e3 <= low <= median <= high


def test_calls_in_a_row_are_counted_each():
    calls = []
    samples = parts.in_a_row(lambda: (calls.append(0), time.sleep(1e-3)), CPU, calls=3, rounds=2)
    assert len(calls) == 6
    assert len(samples) == 2
    assert min(samples) >= 1e3


@pytest.mark.gpu
def test_timers_of_a_gpu_agree_on_a_copy_that_no_cache_holds():
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy():
        return target.copy_(source)

    times = {
        "queued": timing.queued(copy)[0],
        "graph": timing.graph(lambda: copy, 5.0)[0],
        "eager": timing.eager(copy, source.device, 5.0)[0],
        "cold cache": parts.sampler(copy, 2 * source.nbytes)(),
        "in a graph": parts.in_a_graph(copy)(),
    }
    assert max(times.values()) < 2 * min(times.values()), times
