"""Calls of the walk, its defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items, largest_run, power_of_two, tile

SPAN = 64
"""Steps between states that are kept for the gradients of gates."""
UNKEPT_SPAN = 1 << 20
"""The span of a walk that keeps no states: its steps are one loop, in which loads always run ahead."""


@dataclass(frozen=True)
class Role:
    """How a walk computes one result."""

    operands: tuple[str, str, str]
    """The tensors that take the roles of q, k and v."""
    transposed: bool = False
    """Whether the state is the operator's state transposed, and gk and gv are exchanged."""
    late: bool = False
    """Whether the walk runs against the operator's direction and decays after the output."""


ROLES = {
    "o": Role(("q", "k", "v")),
    "dq": Role(("do", "v", "k"), transposed=True),
    "dk": Role(("v", "do", "q"), transposed=True, late=True),
    "dv": Role(("k", "q", "do"), late=True),
}


@dataclass(frozen=True)
class WalkCall(Keyed):
    """What the config of a walk is chosen for: its result, and the operator's dtype, sizes and gates."""

    result: str
    dtype: str
    dk: int
    dv: int
    gates: str
    """Names with spaces between: "g g_gamma gk gv" at most."""

    @property
    def summed(self) -> int:
        """Entries of the side that the walk sums over."""
        return self.dv if ROLES[self.result].transposed else self.dk

    @property
    def kept(self) -> int:
        """Entries of the result's vectors."""
        return self.dk if ROLES[self.result].transposed else self.dv

    def __str__(self) -> str:
        return f"{self.result} {self.dtype} {self.dk}x{self.dv} {self.gates or 'no gate'}"


def walk_tile(call: WalkCall, device: Device, rk: int, rv: int, warps: int) -> Items:
    """`warps` warps with rk x rv entries of the state in a thread, or fewer if they hold a whole result."""
    lanes = max(1, device.warp_size // power_of_two(-(-call.summed // rk)))
    units = power_of_two(-(-call.kept // rv))
    warps = max(1, min(warps, units // lanes))
    return tile(min(units, lanes * warps), warps)


def walk_default(call: WalkCall, device: Device) -> tuple[Items, Items]:
    # a sum over 8 threads, each with up to 32 entries of the state
    rk = largest_run(call.summed, min(16, max(1, call.summed // 8)))
    rv = largest_run(call.kept, min(8, max(1, 32 // rk)))
    warps = min(16, max(4, power_of_two(call.summed) // 32))
    return walk_tile(call, device, rk, rv, warps), (("rk", rk), ("rv", rv), ("count", 8))


def walk_space(call: WalkCall, device: Device) -> tuple[Grid, ...]:
    lanes = max(1, power_of_two(call.summed) // 8)
    grids: dict[Items, None] = {}
    # a sum over 8 threads, each with 32 or 16 entries
    for entries, warps in ((32, 4), (32, 8), (16, 8), (16, 4)):
        rk = largest_run(call.summed, lanes)
        rv = largest_run(call.kept, min(8, max(1, entries // rk)))
        config = (walk_tile(call, device, rk, rv, warps),)
        grids[("config", config), ("rk", (rk,)), ("rv", (rv,)), ("count", (8,))] = None
    return tuple(map(dict, grids))
