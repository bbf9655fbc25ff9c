"""DEVICES: the hardware this package knows, and which of them a torch device is."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from helion_sinkhorn.configs import settings
from helion_sinkhorn.nearest import suggestion


@dataclass(frozen=True)
class Device:
    """One row, found by vendor, arch and compute units, and by the name if several rows have these."""

    key: str
    vendor: str
    arch: str
    compute_units: int
    memory_gb: int
    warp_size: int
    shared_limit: int
    """Bytes of shared memory (LDS) a block may use."""
    family: str
    """Devices of one family may use each other's tuned configs."""
    names: tuple[str, ...] = ()
    """Lower-case parts of the reported name."""

    @property
    def asm(self) -> str:
        """The vendor's reciprocal of one instruction (runtime.device_math.reciprocal)."""
        return "ptx" if self.vendor == "nvidia" else "gcn"


DEVICES = {
    d.key: d
    for d in (
        Device("h100", "nvidia", "sm90", 132, 80, 32, 232448, "hopper", ("h100",)),
        Device("h200", "nvidia", "sm90", 132, 141, 32, 232448, "hopper", ("h200",)),
        Device("b200", "nvidia", "sm100", 148, 180, 32, 232448, "blackwell", ("b200",)),
        Device("gb200", "nvidia", "sm100", 152, 186, 32, 232448, "blackwell", ("gb200",)),
        Device("mi300x", "amd", "gfx942", 304, 192, 64, 65536, "cdna3", ("mi300x",)),
        Device("mi350", "amd", "gfx950", 256, 288, 64, 163840, "cdna4", ("mi350", "mi350x")),
        Device("mi355x", "amd", "gfx950", 256, 288, 64, 163840, "cdna4", ("mi355x",)),
    )
}


def match(vendor: str, arch: str, compute_units: int, name: str) -> Device | None:
    """The row of the hardware that a driver reports; None if there is none."""
    rows = [d for d in DEVICES.values() if (d.vendor, d.arch) == (vendor, arch)]
    words = name.lower()
    named = [d for d in rows if any(part in words for part in d.names)]
    if named:
        return max(named, key=lambda d: max(len(part) for part in d.names if part in words))
    sized = [d for d in rows if d.compute_units == compute_units]
    return sized[0] if sized else None


@functools.cache
def current(index: int) -> Device:
    """The device `cuda:index`; unknown hardware gets a row of its own, named after its arch."""
    import torch

    if settings.DEVICE:
        if settings.DEVICE not in DEVICES:
            raise ValueError(
                f"HELION_SINKHORN_DEVICE={settings.DEVICE!r} is not a known device; "
                f"use one of {', '.join(DEVICES)}{suggestion(settings.DEVICE, DEVICES)}"
            )
        return DEVICES[settings.DEVICE]
    properties = torch.cuda.get_device_properties(index)
    vendor = "amd" if torch.version.hip else "nvidia"
    arch = (
        properties.gcnArchName.split(":")[0] if vendor == "amd" else f"sm{properties.major}{properties.minor}"
    )
    units = properties.multi_processor_count
    known = match(vendor, arch, units, properties.name)
    if known:
        return known
    shared = getattr(properties, "shared_memory_per_block_optin", 65536)
    warp = getattr(properties, "warp_size", 64 if vendor == "amd" else 32)
    memory = properties.total_memory >> 30
    return Device(f"{arch}_{units}", vendor, arch, units, memory, warp, shared, arch)
