"""KERNELS: every Helion kernel body with the config it takes when none was tuned for the call.

Importing this module imports Helion; the package does so on the first call that needs it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import helion

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.kernels import bodies, implicit

Items = tuple[tuple[str, Any], ...]
REGISTER_HISTORY_STEPS = 32
"""Most iterations that `sinkhorn_backward` takes: a start is kept in registers for each segment of them."""
REGISTER_HISTORY_ENTRIES = 16 * 16
"""Largest matrix of `sinkhorn_backward`: on an H200 the history in memory is as fast from 32 x 32 on."""


@dataclass(frozen=True)
class Call:
    """What a config is chosen for: the arithmetic (canonical form) and the shape without the batch."""

    deepseek: bool
    lead_axis: int
    dtype: str
    n: int
    m: int
    n_iters: int

    @property
    def steps(self) -> int:
        """Counted iterations; the first of the deepseek form is the softmax and one trail step."""
        return self.n_iters - 1 if self.deepseek else self.n_iters

    @property
    def key(self) -> tuple[Any, ...]:
        """The fields of a stored entry's key (configs.store.KEY_FIELDS)."""
        form, first = ("deepseek" if self.deepseek else "log"), ("rows" if self.lead_axis == 1 else "cols")
        return form, first, self.dtype, self.n, self.m, self.n_iters


@dataclass(frozen=True)
class Choice:
    """A kernel with everything a launch needs to know, and where that came from."""

    kernel: str
    config: Items
    variant: Items
    source: str

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in (*self.config, *self.variant))
        return f"{self.kernel} ({values}) from {self.source}"


@dataclass(frozen=True)
class Kernel:
    """One row of KERNELS."""

    body: Callable[..., None]
    default: Callable[[Call, Device], tuple[Items, Items]]


def power_of_two(k: int) -> int:
    """The smallest power of two that is at least k: the extent Triton gives an axis of k."""
    return 1 << (k - 1).bit_length()


def is_whole(call: Call) -> bool:
    """Whether a tile holds no padding."""
    return call.n == power_of_two(call.n) and call.m == power_of_two(call.m)


def can_pack(call: Call, most: int) -> bool:
    """Whether a thread may hold a whole matrix of at most `most` entries, loaded in pieces."""
    return is_whole(call) and 1 < call.n * call.m <= most


def spread_over(call: Call, device: Device, fewest: int, most: int) -> Items:
    """Block and warps for a (block, n, m) tile: one warp, `fewest` entries a thread if that fills it.

    A warp exchanges sums by shuffles; more warps do it through shared memory, at barriers, so
    they join only beyond `most` entries a thread.
    """
    size = power_of_two(call.n) * power_of_two(call.m)
    warps = 1
    while size > warps * device.warp_size * most:
        warps *= 2
    block = max(1, warps * device.warp_size * fewest // size)
    return ("block_sizes", (min(block, warps * device.warp_size),)), ("num_warps", warps)


def thread_per_matrix(device: Device) -> Items:
    """As many matrices in a block as threads: Triton then leaves each matrix in one thread."""
    return ("block_sizes", (device.warp_size,)), ("num_warps", 1)


def forward_default(call: Call, device: Device) -> tuple[Items, Items]:
    # 8 x 8 in one thread is 20 % faster than in two where a pivot leaves 49 entries of A, slower with 64
    packed = can_pack(call, 64 if call.deepseek else 16)
    small = call.n * call.m <= 16
    variant = ("packed", packed), ("paired", packed and small), ("pivoted", packed)
    if packed:
        return thread_per_matrix(device), variant
    return spread_over(call, device, 64 if is_whole(call) else 32, 64), variant


def backward_default(call: Call, device: Device) -> tuple[Items, Items]:
    packed = can_pack(call, 16)
    variant = ("packed", packed), ("paired", False), ("pivoted", packed), ("length", 5)
    if packed:
        return thread_per_matrix(device), variant
    # the masks of a padded matrix take registers too
    return spread_over(call, device, 16 if is_whole(call) else 8, 32), variant


def history_default(call: Call, device: Device) -> tuple[Items, Items]:
    return spread_over(call, device, 16, 64 if is_whole(call) and call.deepseek else 32), ()


def implicit_direct_default(call: Call, device: Device) -> tuple[Items, Items]:
    # an 8 x 8 matrix fits too, barely: 241 to 255 registers, and 15 s and more to compile
    packed = call.n == call.m and can_pack(call)
    variant = (("packed", packed),)
    return thread_per_matrix(device) if packed else spread_over(call, device, 8, 32), variant


def implicit_cg_default(call: Call, device: Device) -> tuple[Items, Items]:
    return spread_over(call, device, 16, 32), ()


KERNELS = {
    "sinkhorn_forward": Kernel(bodies.sinkhorn_forward, forward_default),
    "sinkhorn_backward": Kernel(bodies.sinkhorn_backward, backward_default),
    "sinkhorn_backward_history": Kernel(bodies.sinkhorn_backward_history, history_default),
    "sinkhorn_implicit_direct": Kernel(implicit.sinkhorn_implicit_direct, implicit_direct_default),
    "sinkhorn_implicit_cg": Kernel(implicit.sinkhorn_implicit_cg, implicit_cg_default),
}


@functools.cache
def build(name: str, config: Items, interpret: bool = False) -> helion.Kernel:
    """The Helion kernel `name` with this fixed config: nothing is ever autotuned by a call.

    interpret=True runs the body eagerly on CPU tensors (Helion's reference mode).
    """
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in config}
    mode = {"ref_mode": helion.RefMode.EAGER} if interpret else {}
    return helion.kernel(KERNELS[name].body, config=helion.Config(**values), static_shapes=False, **mode)
