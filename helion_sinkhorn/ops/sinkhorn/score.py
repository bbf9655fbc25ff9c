"""A time predicted from machine code: ranks the configs of a device that is not here.

One compute unit runs the tiles that fall to it.  Their warps share four schedulers, so a tile
costs a scheduler the busiest of its pipes: instruction issue, special functions, exchange between
threads.  A warp alone takes longer, its latency: instructions wait for those before them unless
entries of a thread, which are independent, fill the wait.  With k tiles to run, r of them at a time,

    cycles = max(k * busiest, ceil(k / r) * latency)

The model knows no caches and no clock: its cycles rank candidates of one key and mean nothing else.
How well they rank is measured by every tuning run (tuning/calibration.py) and told in tuning_cache/README.md.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.machine.binary import Binary
from helion_sinkhorn.ops.sinkhorn.launch import segment, segments
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall

SCHEDULERS = 4
SPECIAL = ("reciprocal", "exp", "log")
EXCHANGE = ("cross-lane", "shared")


@dataclass(frozen=True)
class Pipes:
    """Cycles of one scheduler for a warp instruction of each pipe, and how long a result takes."""

    issue: float
    special: float
    exchange: float
    memory: float
    latency: float
    special_latency: float
    exchange_latency: float
    barrier_latency: float
    memory_latency: float


# lanes a clock, of a quarter of a compute unit: NVIDIA 32, 4 special, 8 exchange; CDNA 16, 4 and 8
MACHINES = {
    "nvidia": Pipes(1, 8, 4, 4, 4, 20, 24, 30, 600),
    "amd": Pipes(4, 16, 8, 8, 8, 32, 64, 60, 800),
}


@dataclass(frozen=True)
class Loop:
    """One of the innermost loops of a body."""

    trips: int
    matvecs: int
    """Matrix-vector products of one trip, a rank-one update counting as one; 0 where nothing is unrolled."""


def loops_of(kernel: str, call: SinkhornCall, variant: dict[str, Any], found: int) -> list[Loop]:
    """The `found` loops that are left in machine code, in program order: the shortest are unrolled away.

    Those that take segments back are the last of a program, and too large to be unrolled.
    """
    # only kernels that replay segments, hc_split_sinkhorn's backward among them, have a length of these
    if "length" in variant:
        every, back = backward_loops(call, variant["length"])
        back = back[max(0, len(back) - found) :]
    else:
        every, back = all_loops(kernel, call), []
    left = found - len(back)
    longest = sorted(range(len(every)), key=lambda i: -every[i].trips)[:left]
    extra = [Loop(1, 0)] * (left - len(longest))
    return [every[i] for i in sorted(longest)] + extra + back


def backward_loops(call: SinkhornCall, length: int) -> tuple[list[Loop], list[Loop]]:
    """The loops of kernels that replay: those that run segments forward, and those that take them back."""
    length, head, tail = segments(call, length)
    rest = call.steps - (head + tail) * length
    forward = [length] * head + ([rest, *[length] * (tail - 1)] if tail else [])
    # a loop of one trip is none
    back = tail - 1, head
    return [Loop(trips, 0) for trips in forward if trips > 1], [Loop(trips, 0) for trips in back if trips > 1]


def all_loops(kernel: str, call: SinkhornCall) -> list[Loop]:
    """The loops of kernels that replay nothing."""
    steps, length = call.steps, segment(call)
    restarts = max(0, steps - 1) // length
    head = steps - restarts * length
    every = [Loop(head, 2), *[Loop(restarts * length, 2)] * (restarts > 0)]
    if kernel == "sinkhorn_backward_history":
        every += [Loop(restarts * (length - 1), 4)] * (restarts > 0) + [Loop(head - 1, 4)]
    return every


def copies(body: dict[str, int], loop: Loop, outside: int, entries: float) -> int:
    """How many iterations the compiler put into one trip, by the multiplications of its matvecs.

    Sums across threads are multiplications too, so that is a guess.  In a forward loop it must fit
    the reciprocals: outside stand those of one iteration and of the iterations left over.
    """
    if not loop.matvecs:
        return 1
    reciprocals = body.get("reciprocal", 0)
    arithmetic = body.get("fma", 0) + body.get("mul", 0) + body.get("two-wide fp32", 0) - reciprocals
    guess = max(1.0, arithmetic / (loop.matvecs * entries))
    fitting = [
        count
        for count in range(1, 17)
        if loop.matvecs == 2
        and reciprocals
        and reciprocals % count == 0
        and reciprocals // count * (1 + loop.trips % count) <= outside
    ]
    return min(fitting or [round(guess)], key=lambda count: abs(count - guess))


def executed(binary: Binary) -> Counter[str]:
    """Instructions that one warp runs for one tile, by class."""
    job = binary.job
    variant, block = dict(job.choice.variant), dict(job.choice.config)["block_sizes"][0]
    entries = max(1.0, block * job.call.n * job.call.m / binary.threads)
    run = Counter(binary.counts)
    outside = run["reciprocal"] - sum(body.get("reciprocal", 0) for body in binary.loops)
    expected = loops_of(job.choice.kernel, job.call, variant, len(binary.loops))
    for body, loop in zip(binary.loops, expected, strict=True):
        # iterations left over stand outside
        trips = max(1, loop.trips // copies(body, loop, outside, entries))
        for name, number in body.items():
            run[name] += number * (trips - 1)
    return run


def score(binary: Binary, batch: int) -> float:
    """Cycles for `batch` matrices: lower is better."""
    device: Device = DEVICES[binary.device]
    machine, run = MACHINES[device.vendor], executed(binary)
    config = dict(binary.job.choice.config)
    block, warps = config["block_sizes"][0], binary.threads // device.warp_size
    special, exchange = (sum(run[name] for name in names) for names in (SPECIAL, EXCHANGE))
    memory = run["global load"] + run["global store"]
    wide = run["global load 128"] + run["global store 128"]
    pipes = (
        run["instructions"] * machine.issue,
        special * machine.special,
        exchange * machine.exchange,
        (wide + 0.5 * (memory - wide)) * machine.memory,
    )
    # other pipes are never hidden whole behind the busiest
    busiest = max(pipes) + 0.25 * (sum(pipes) - max(pipes))
    entries = block * binary.job.call.n * binary.job.call.m / binary.threads
    independent = min(4.0, max(1.0, math.sqrt(entries)))
    waits = (
        run["instructions"] * machine.latency
        + special * machine.special_latency
        + exchange * machine.exchange_latency
    ) / independent
    latency = max(busiest, waits + run["barrier"] * machine.barrier_latency + 2 * machine.memory_latency)
    tiles = math.ceil(math.ceil(batch / block) / device.compute_units)
    resident = max(1, min(tiles, binary.occupancy // warps))
    # fewer warps than schedulers leave some of these idle
    used = min(SCHEDULERS, resident * warps)
    return max(tiles * warps * busiest / used, math.ceil(tiles / resident) * latency)
