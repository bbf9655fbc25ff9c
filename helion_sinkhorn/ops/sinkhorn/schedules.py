"""Schedules that the tuner tries beside a launch with one block for each tile."""

from __future__ import annotations

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.runtime.space import Items


def persistent(device: Device) -> tuple[Items, ...]:
    """Blocks that take tile after tile, 16 or 32 of them on each compute unit; tried on NVIDIA."""
    kind = ("pid_type", "persistent_interleaved")
    return tuple((kind, ("num_sm_multiplier", k)) for k in (16, 32)) if device.vendor == "nvidia" else ()


def waves(device: Device) -> tuple[Items, ...]:
    """Registers for two waves on a scheduler, which AMD's compiler can be told to aim at."""
    return ((("waves_per_eu", 2),),) if device.vendor == "amd" else ()


def scheduled(tiles: tuple[Items, ...], *schedules: Items) -> tuple[Items, ...]:
    """Tiles as they are and with each schedule."""
    return tuple((*t, *s) for t in tiles for s in ((), *schedules))


def capped(config: Items, device: Device) -> tuple[Items, ...]:
    """Registers for 16 warps on an SM, which NVIDIA's compiler has to be told: it would take more and fit
    fewer."""
    if device.vendor != "nvidia":
        return ()
    kind = ("pid_type", "persistent_interleaved"), ("num_sm_multiplier", 4), ("maxnreg", 128)
    return ((*config, *kind),)


def few_blocks(config: Items, device: Device) -> tuple[Items, ...]:
    """Persistent blocks of 8 or 12 warps on each compute unit: their history stays in L2; tried on NVIDIA."""
    if device.vendor != "nvidia":
        return ()
    warps = dict(config)["num_warps"]
    multipliers = sorted({max(1, k // warps) for k in (8, 12)})
    return tuple(
        (*config, ("pid_type", "persistent_interleaved"), ("num_sm_multiplier", k)) for k in multipliers
    )
