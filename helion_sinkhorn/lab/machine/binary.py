"""A job for the compilers, the properties of its machine code, and reasons not to launch it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.runtime.kernel import Choice

MAX_THREADS = 1024
"""The most threads of a block.  Neither Helion nor Triton refuses more, but a launch would fail."""


@dataclass(frozen=True)
class Job:
    """One kernel to compile: a choice of config and variant for a call."""

    call: Any
    """What the config was chosen for, of the type in the kernel's row."""
    choice: Choice
    batch: int = 65536
    options: tuple[tuple[str, Any], ...] = ()
    """What else `Trial.run` of the kernel takes: eps=0.01, system="full"."""


@dataclass(frozen=True)
class Binary:
    """The properties of one job's machine code; a job that did not compile has only problems."""

    device: str
    job: Job
    problems: tuple[str, ...] = ()
    """Why this must not be launched, or is not what it should be; empty for good code."""
    registers: int = 0
    """Registers of a thread, on AMD with its accumulation registers."""
    spills: int = 0
    """NVIDIA: instructions that touch local memory.  AMD: registers the compiler found no room for."""
    spill_bytes: int = 0
    """Stack of a thread."""
    shared: int = 0
    threads: int = 0
    occupancy: int = 0
    """Warps (wavefronts) that one compute unit holds at a time."""
    counts: dict[str, int] = field(default_factory=dict)
    """Instructions of the whole kernel by class (mnemonics.CLASSES), "instructions" being all of them."""
    loops: tuple[dict[str, int], ...] = ()
    """`counts` for the body of every innermost loop, in program order; compilers may have unrolled it."""
    accesses: dict[str, int] = field(default_factory=dict)
    """Global loads and stores by the bits a thread moves: "load 128", "store 32"."""
    operations: dict[str, int] = field(default_factory=dict)
    """Floating-point operations by name: PTX, which ptxas translates one by one, or GCN."""
    modes: dict[str, int] = field(default_factory=dict)
    """Whether products may fuse with sums, and on AMD the modes that the kernel's descriptor sets."""

    @property
    def compiled(self) -> bool:
        return self.threads > 0

    @property
    def hottest(self) -> dict[str, int]:
        """The largest innermost loop; the whole kernel where there is none."""
        return max(self.loops, key=lambda body: body["instructions"], default=self.counts)


def occupancy(device: Device, registers: int, shared: int, threads: int) -> int:
    """Warps on one compute unit: it has 4 schedulers with 512 registers a lane, allocated by 8."""
    nvidia = device.vendor == "nvidia"
    warps = threads // device.warp_size
    a_scheduler = min(16 if nvidia else 8, 512 // max(-(-registers // 8) * 8, 8))
    reserved = 1024 if nvidia else 0
    by_shared = (device.shared_limit + reserved) // (shared + reserved) if shared + reserved else 32
    return warps * min(32, 4 * a_scheduler // warps, by_shared)


def problems(device: Device, binary: Binary) -> Iterator[str]:
    """Defects that the compilers accept, but that make a launch fail, or slow."""
    counts = binary.counts
    if binary.spills or binary.spill_bytes:
        yield f"spills {binary.spills} ({binary.spill_bytes} bytes a thread)"
    if binary.shared > device.shared_limit:
        yield f"{binary.shared} bytes of shared memory, {device.key} has {device.shared_limit}"
    if binary.threads > MAX_THREADS:
        yield f"{binary.threads} threads a block, at most {MAX_THREADS}"
    if stray := counts.get("stack pointer as data"):
        yield f"{stray} instructions take the stack pointer for data (docs/dev/helion.md)"
    if not counts.get("global load") or not counts.get("global store"):
        yield "no global loads or no global stores"


def exchanges(counts: dict[str, int]) -> int:
    """Instructions by which threads exchange data."""
    return counts.get("cross-lane", 0) + counts.get("shared", 0) + counts.get("barrier", 0)
