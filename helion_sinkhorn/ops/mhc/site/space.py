"""The properties of a call that choose configs of hc_site, the defaults, and what the tuner tries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.ops.mhc.mixes import space as mixes
from helion_sinkhorn.ops.mhc.pre import space as pre
from helion_sinkhorn.runtime.space import Items, default_only


@dataclass(frozen=True)
class SiteCall(Keyed):
    """The dtype of the streams, their number and columns, and the requested precision."""

    dtype: str
    n: int
    columns: int
    precision: str

    @property
    def mixes(self) -> mixes.MixesCall:
        """The projection of such a site."""
        return mixes.MixesCall(self.dtype, self.n * (self.n + 2), self.n * self.columns, self.precision)

    @property
    def pre(self) -> pre.PreCall:
        """The collapse of such a site."""
        return pre.PreCall(self.dtype, self.n, self.columns)

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.columns} {self.precision}"


def of_mixes(choose: Callable[[mixes.MixesCall, Device], Any]) -> Callable[[SiteCall, Device], Any]:
    """A default or a space of the projection, for the call of a site."""
    return lambda call, device: choose(call.mixes, device)


def weights_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    return pre.backward_default(call.pre, device)


weights_space = default_only(weights_default)


def backward_default(call: SiteCall, device: Device) -> tuple[Items, Items]:
    config, variant = mixes.backward_default(call.mixes, device)
    sizes = dict(config)
    if sizes["block_sizes"] == (64, 128) and sizes["num_warps"] == 4:
        # with the other gradients 128 columns take more registers than four warps have
        config = mixes.backward_config(64, 64, 4, sizes["num_stages"])
    return config, variant


backward_space = of_mixes(mixes.backward_space)
