"""A time predicted from machine code, and the config that it picks for a device that is not in this machine.

One compute unit runs the tiles that fall to it.  Their warps share four schedulers, so a tile costs a
scheduler the busiest of its pipes: instruction issue, special functions, exchange between threads.  A warp
alone takes longer, its latency: instructions wait for those before them unless independent entries of a
thread fill the wait.  With k tiles to run, r of them at a time,

    cycles = max(k * busiest, ceil(k / r) * latency)

The model knows no caches and no clock: its cycles rank candidates of one key and mean nothing else.  Every
tuning run measures how well they rank (calibration.py, tuning_cache/README.md).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.machine.binary import Binary
from helion_sinkhorn.ops.sinkhorn.launch import segment, segments
from helion_sinkhorn.ops.sinkhorn.space import SinkhornCall

MODEL = 4
"""Version of score and choice; stored with every entry that rests on them."""
MARGIN = 0.75
"""The default stays unless the model gives another candidate less than this share of its cycles: on an H200
2 of 184 choices are then slower than the default, 14 at 0.9."""


class Pipes(NamedTuple):
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


class Loop(NamedTuple):
    """One of the innermost loops of a body."""

    trips: int
    products: int = 0
    """Matrix-vector products of one trip, a rank-one update counting as one; 0 where nothing is unrolled."""


def loops_of(kernel: str, call: SinkhornCall, variant: dict[str, Any], count: int) -> list[Loop]:
    """The `count` loops that are left in machine code, in program order: the shortest are unrolled away.

    Those that take segments back are the last of a program, and too large to be unrolled.
    """
    steps, back = call.steps, []
    if kernel == "sinkhorn_backward":
        length, head, tail = segments(call, variant["length"])
        rest = steps - (head + tail) * length
        forward = [length] * head + ([rest, *[length] * (tail - 1)] if tail else [])
        # a loop of one trip is none
        every = [Loop(trips) for trips in forward if trips > 1]
        back = [Loop(trips) for trips in (tail - 1, head) if trips > 1]
        back = back[max(0, len(back) - count) :]
    else:
        length = segment(call)
        restarts = max(0, steps - 1) // length
        head = steps - restarts * length
        every = [Loop(head, 2), *[Loop(restarts * length, 2)] * (restarts > 0)]
        if kernel == "sinkhorn_backward_history":
            every += [Loop(restarts * (length - 1), 4)] * (restarts > 0) + [Loop(head - 1, 4)]
    left = count - len(back)
    longest = sorted(range(len(every)), key=lambda i: -every[i].trips)[:left]
    return [every[i] for i in sorted(longest)] + [Loop(1)] * (left - len(longest)) + back


def copies(body: dict[str, int], loop: Loop, outside: int, entries: float) -> int:
    """How many iterations the compiler put into one trip, by the multiplications of its products.

    Sums across threads are multiplications too, so that is a guess.  In a forward loop it must fit
    the reciprocals: outside stand those of one iteration and of the iterations left over.
    """
    if not loop.products:
        return 1
    reciprocals = body.get("reciprocal", 0)
    arithmetic = body.get("fma", 0) + body.get("mul", 0) + body.get("two-wide fp32", 0) - reciprocals
    guess = max(1.0, arithmetic / (loop.products * entries))
    fitting = [
        count for count in range(1, 17)
        if loop.products == 2 and reciprocals and reciprocals % count == 0
        and reciprocals // count * (1 + loop.trips % count) <= outside
    ]  # fmt: skip
    return min(fitting or [round(guess)], key=lambda count: abs(count - guess))


def executed(binary: Binary, entries: float) -> Counter[str]:
    """Instructions that one warp runs for one tile, by class, each thread with so many entries."""
    choice, run = binary.job.choice, Counter(binary.counts)
    outside = run["reciprocal"] - sum(body.get("reciprocal", 0) for body in binary.loops)
    expected = loops_of(choice.kernel, binary.job.call, dict(choice.variant), len(binary.loops))
    for body, loop in zip(binary.loops, expected, strict=True):
        # iterations left over stand outside
        trips = max(1, loop.trips // copies(body, loop, outside, max(1.0, entries)))
        for name, number in body.items():
            run[name] += number * (trips - 1)
    return run


def score(binary: Binary, batch: int) -> float:
    """Cycles for `batch` matrices: lower is better."""
    device, call = DEVICES[binary.device], binary.job.call
    machine = MACHINES[device.vendor]
    block, warps = dict(binary.job.choice.config)["block_sizes"][0], binary.threads // device.warp_size
    entries = block * call.n * call.m / binary.threads
    run = executed(binary, entries)
    special, exchange = run["reciprocal"] + run["exp"] + run["log"], run["cross-lane"] + run["shared"]
    memory = run["global load"] + run["global store"]
    wide = run["global load 128"] + run["global store 128"]
    work = (
        (run["instructions"], machine.issue, machine.latency),
        (special, machine.special, machine.special_latency),
        (exchange, machine.exchange, machine.exchange_latency),
        (wide + 0.5 * (memory - wide), machine.memory, 0),
    )
    pipes = [count * cycles for count, cycles, _ in work]
    # other pipes are never hidden whole behind the busiest
    busiest = max(pipes) + 0.25 * (sum(pipes) - max(pipes))
    independent = min(4.0, max(1.0, math.sqrt(entries)))
    waits = sum(count * wait for count, _, wait in work) / independent
    latency = max(busiest, waits + run["barrier"] * machine.barrier_latency + 2 * machine.memory_latency)
    tiles = math.ceil(math.ceil(batch / block) / device.compute_units)
    resident = max(1, min(tiles, binary.occupancy // warps))
    # fewer warps than the four schedulers leave some of these idle
    return max(tiles * warps * busiest / min(4, resident * warps), math.ceil(tiles / resident) * latency)


def chosen(scores: Sequence[float], settings: Sequence[dict[str, Any]]) -> int:
    """Which candidate to store, by scores and by configs with their variants; the default is the first.

    More warps than the default's are left out where they share matrices: sums between them wait at barriers,
    which the score makes too cheap (on an H200 10 of 24 slower choices came from that, by up to 2.2).
    """
    most = settings[0]["num_warps"]
    fixed = [s.get("packed") or any(s.get("thread", ())) for s in settings]
    allowed = [i for i, s in enumerate(settings) if i == 0 or fixed[i] or s["num_warps"] <= most]
    best = min(allowed, key=scores.__getitem__)
    return best if scores[best] < MARGIN * scores[0] else 0


def pick(binaries: Sequence[Binary], batch: int) -> tuple[Binary, float, float]:
    """(what to use, its score, the default's), the default being the first of `binaries`.

    Raises:
        RuntimeError: the default does not compile.
    """
    default = binaries[0]
    if not default.compiled:
        why = "; ".join(default.problems)
        raise RuntimeError(f"the default does not compile for {default.device}: {why}")
    good = [default, *(b for b in binaries[1:] if b.compiled and not b.problems)]
    scores = [score(b, batch) for b in good]
    settings = [{**dict(b.job.choice.config), **dict(b.job.choice.variant)} for b in good]
    # any sound candidate is better than a default that spills
    kept = chosen([math.inf if default.problems else scores[0], *scores[1:]], settings)
    return good[kept], scores[kept], scores[0]
