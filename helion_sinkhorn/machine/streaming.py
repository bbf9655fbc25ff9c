"""A time predicted from machine code for kernels that stream tensors through their programs.

A program walks its part of the tensors in steps.  `stages` - 1 of them are being loaded while one is worked
on, which is a chain of instructions; what programs of one compute unit issue and take in adds up.  With r of
p programs on a unit at a time, p / r rounds follow one another, and a unit is done after

    step  = max(latency / (stages - 1), chain, r issue, r bytes / intake)
    units = (2 latency + steps step) p / r

Memory as a whole takes bytes / bandwidth, and the two are never hidden whole behind one another:

    time = start + sqrt(units^2 + memory^2)

Nanoseconds.  The constants of `sm90` are fitted to what dot compress took on an H200 (tuning/calibration.py);
the others follow from data sheets, and no device confirmed them.  They rank the candidates of one key.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.machine.binary import Binary

START = 450.0
"""Nanoseconds of a launch, the same for all candidates."""
DRAIN = 31.0
"""Bytes a ns that one program turns from sums into stores."""


@dataclass(frozen=True)
class Bandwidths:
    """Bytes a ns of the whole memory and into one compute unit; ns of the rest."""

    bandwidth: float
    intake: float
    latency: float
    """From a load to its data, with memory busy."""
    instruction: float
    """From one instruction of a warp to its next."""
    issue: float
    """From one instruction of a scheduler to its next."""
    matrix: float
    """What a matrix instruction adds to that of its warp."""


# gfx950: a wave issues every 4th cycle of 2.4 GHz and waits a little; 32 cycles for a matrix instruction
MACHINES = {
    "sm90": Bandwidths(4240, 82, 590, 1.35, 0.57, 4),
    "sm100": Bandwidths(7000, 85, 620, 1.3, 0.54, 4),
    "gfx942": Bandwidths(4000, 100, 900, 2.4, 1.9, 10),
    "gfx950": Bandwidths(6500, 100, 900, 2.1, 1.7, 10),
}


@dataclass(frozen=True)
class Walk:
    """What each of `programs` programs does."""

    programs: int
    steps: int
    before: int
    """Bytes read before the first step."""
    taken: int
    """Bytes read in a step."""
    written: int
    """Bytes stored in a step."""
    moved: int
    """Bytes of all tensors."""


def nanoseconds(binary: Binary, walk: Walk, stages: int) -> float:
    """What a launch takes; stages: steps of a program under way at a time."""
    device = DEVICES[binary.device]
    machine, warps = MACHINES[device.arch], binary.threads // device.warp_size
    # a loop of few trips is unrolled: then all of the kernel's instructions are its steps
    inner, whole = binary.hottest, binary.counts
    instructions = max(inner["instructions"], whole["instructions"] / walk.steps)
    matrix = max(inner.get("matrix", 0), whole.get("matrix", 0) / walk.steps)
    chain = instructions * machine.instruction + matrix * machine.matrix + walk.written / DRAIN
    issue = instructions * machine.issue * warps / 4
    intake = min(machine.intake, 2 * machine.bandwidth / min(device.compute_units, walk.programs))

    def walked(programs: int) -> float:
        """Until so many programs that share a unit are done."""
        work = max(chain, programs * issue, programs * (walk.taken + walk.written) / intake)
        step = max(machine.latency / (stages - 1), work) if stages > 1 else machine.latency + work
        return 2 * machine.latency + programs * walk.before / intake + walk.steps * step

    most = math.ceil(walk.programs / device.compute_units)
    resident = min(most, max(1, binary.occupancy // warps))
    rounds, rest = divmod(most, resident)
    units = rounds * walked(resident) + (walked(rest) if rest else 0.0)
    return START + math.hypot(units, walk.moved / machine.bandwidth)
