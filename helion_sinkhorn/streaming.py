"""A time predicted from machine code for kernels that stream matrices: dot compress.

A program walks rows in steps.  A step waits for its loads, `stages` - 1 of which are under way at a time, or
for the pipes of its compute unit, or for what the unit can take in; programs of one unit share these.  With
p programs on a unit, r of them at a time, p / r rounds follow one another:

    step  = max(latency / (stages - 1), r issue, r bytes / intake)
    time  = max(rounds (ramp + steps step), bytes of the whole / bandwidth)

Nanoseconds, fitted to what a tuning run on an H200 measured (calibration.py); they rank the candidates of
one key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.kernels.dot_compress_space import DotCall, padded
from helion_sinkhorn.offline import Binary


@dataclass(frozen=True)
class Machine:
    """Of the whole: bytes a ns from memory.  Of one unit: bytes a ns, operations a ns of its matrix unit."""

    bandwidth: float
    intake: float
    matrix: float
    clock: float
    """Cycles a ns; a scheduler issues one instruction in `issue` of them."""
    issue: float
    latency: float
    """ns from a load to its data, with memory busy."""


# bandwidth: measured on an H200; elsewhere 85 to 90 % of the data sheet
MACHINES = {
    "sm90": Machine(4300, 75, 7000, 1.75, 1, 700),
    "sm100": Machine(7200, 80, 14000, 1.85, 1, 750),
    "gfx942": Machine(4300, 100, 4000, 2.1, 4, 900),
    "gfx950": Machine(6800, 100, 8000, 2.4, 4, 900),
}


@dataclass(frozen=True)
class Walk:
    """What one of `programs` programs does: bytes before its loop, and in each of its steps."""

    programs: int
    steps: int
    before: int
    taken: int
    written: int
    operations: int
    whole: int
    """Bytes that all programs move if each tensor moves once."""


def walk_of(binary: Binary, batch: int) -> Walk:
    call: DotCall = binary.job.call
    choice = binary.job.choice
    config, variant = dict(choice.config), dict(choice.variant)
    size, tile = 4 if call.dtype == "float32" else 2, config["block_sizes"][0]
    block, k, parts = variant["block_d"], padded(call.k), call.parts
    blocks = math.ceil(call.d / block)
    x, y, b = batch * call.m * call.d, batch * call.m * call.k, batch * call.d * call.k * parts
    once = 2 * tile * block * k
    if choice.kernel == "dot_compress_product":
        taken = tile * (block + k) * size
        return Walk(batch * blocks, math.ceil(call.m / tile), 0, taken, 0, once, (x + y + b) * size)
    rows = min(variant["rows"], call.m)
    walks, steps = math.ceil(call.m / rows), math.ceil(rows / tile)
    if choice.kernel == "dot_compress_apply":
        inside = blocks > 1
        held = block * k * size * parts
        taken = tile * block * size + (held if inside else 0)
        return Walk(
            batch * walks, steps * blocks, 0 if inside else held, taken, tile * k * size // blocks,
            parts * once, (x + y + b) * size,
        )  # fmt: skip
    return Walk(
        batch * walks * blocks, steps, 2 * block * k * size * parts, 2 * tile * k * size,
        tile * block * size, 2 * parts * once, (x + 2 * y + 2 * b) * size,
    )  # fmt: skip


def score(binary: Binary, batch: int) -> float:
    """Nanoseconds for `batch` elements: lower is better."""
    device = DEVICES[binary.device]
    machine, walk = MACHINES[device.arch], walk_of(binary, batch)
    warps = binary.threads // device.warp_size
    resident = max(1, binary.occupancy // warps)
    busy = min(device.compute_units, walk.programs)
    intake = min(machine.intake, 2 * machine.bandwidth / busy)
    stages = dict(binary.job.choice.config)["num_stages"]
    matrix = 0.0 if binary.job.call.dtype == "float32" else walk.operations / machine.matrix
    issue = max(binary.hottest["instructions"] * warps / 4 * machine.issue / machine.clock, matrix)
    moved = (walk.taken + walk.written) / intake

    def rounds(programs: int) -> float:
        """The time of one round of so many programs on a unit."""
        work = max(programs * issue, programs * moved)
        step = max(machine.latency / (stages - 1), work) if stages > 1 else machine.latency + work
        return 2 * machine.latency + programs * walk.before / intake + walk.steps * step

    each = math.ceil(walk.programs / device.compute_units)
    full, rest = divmod(each, min(resident, each))
    units = full * rounds(min(resident, each)) + (rounds(rest) if rest else 0.0)
    return max(units, walk.whole / machine.bandwidth)
