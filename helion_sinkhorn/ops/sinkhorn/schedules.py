"""Schedules that the tuner tries beside a launch with one block for each tile."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.runtime.space import Items

PERSISTENT = "pid_type", "persistent_interleaved"


def persistent(device: Device) -> tuple[Items, ...]:
    """Blocks that take tile after tile, 16 or 32 blocks on each compute unit; tried on NVIDIA."""
    return several(16, 32) if device.vendor == "nvidia" else ()


def few_blocks(warps: int, device: Device) -> tuple[Items, ...]:
    """Persistent blocks of 8 or 12 warps on each compute unit: their history stays in L2; tried on NVIDIA."""
    most = {max(1, k // warps) for k in (8, 12)}
    return several(*sorted(most)) if device.vendor == "nvidia" else ()


def several(*multipliers: int) -> tuple[Items, ...]:
    """Persistent blocks; each multiplier is a number of them on a compute unit."""
    return tuple((PERSISTENT, ("num_sm_multiplier", k)) for k in multipliers)


def capped(device: Device) -> tuple[Items, ...]:
    """A limit of registers for 16 warps on an SM; without it NVIDIA's compiler takes more and fewer fit."""
    kind = PERSISTENT, ("num_sm_multiplier", 4), ("maxnreg", 128)
    return (kind,) if device.vendor == "nvidia" else ()


def waves(device: Device) -> tuple[Items, ...]:
    """A hint to AMD's compiler to use registers for two waves on a scheduler."""
    return ((("waves_per_eu", 2),),) if device.vendor == "amd" else ()


def scheduled(tiles: tuple[Items, ...], *schedules: Items) -> tuple[Items, ...]:
    """The tiles without a schedule and with each schedule."""
    return tuple((*t, *s) for t in tiles for s in ((), *schedules))
