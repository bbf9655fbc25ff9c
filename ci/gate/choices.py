"""The configs with which a kernel is judged."""

from __future__ import annotations

from helion_sinkhorn.configs import store
from helion_sinkhorn.configs.device import Device


def choices(name: str, call, batch: int, device: Device) -> list[tuple[object, bool]]:
    """(choice, whether it serves): the default of a kernel, what is served, all committed for the call."""
    from helion_sinkhorn.operators import KERNELS
    from helion_sinkhorn.runtime import serving
    from helion_sinkhorn.runtime.kernel import Choice, default_choice

    served = serving.choose(KERNELS[name], call, batch, device)
    stored = [
        Choice(name, e.config, e.variant, f"{device.key}, tuned at batch {e.batch} ({e.evidence})")
        for folder in store.folders()
        for e in store.read(folder, device.key, name)
        if e.key == call.key
    ]
    default = default_choice(KERNELS[name], call, device)
    found = {(c.config, c.variant): c for c in (default, served, *stored)}
    return [(c, key == (served.config, served.variant)) for key, c in found.items()]
