"""What a Sinkhorn config is chosen for, the config taken untuned, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key, key_of
from helion_sinkhorn.kernels.space import Grid, Items, power_of_two, tile
from helion_sinkhorn.scaling import pairs_are_safe, pivot_is_safe

TUNED_EPS = 1e-6
"""The eps of every tuned workload: variants that need a larger one are not worth a candidate."""


REGISTER_HISTORY_STEPS = 32
"""Most iterations that `sinkhorn_backward` takes: a start is kept in registers for each segment of them."""


REGISTER_HISTORY_ENTRIES = 16 * 16
"""Largest matrix of `sinkhorn_backward`: on an H200 the history in memory is as fast from 32 x 32 on."""


@dataclass(frozen=True)
class Call:
    """What a Sinkhorn config is chosen for: the arithmetic (canonical form), the shape without the batch."""

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
    def form(self) -> str:
        return "deepseek" if self.deepseek else "log"

    @property
    def first(self) -> str:
        return "rows" if self.lead_axis == 1 else "cols"

    @property
    def key(self) -> Key:
        """What a stored entry is found by."""
        return key_of({
            "form": self.form, "first": self.first, "dtype": self.dtype,
            "n": self.n, "m": self.m, "iters": self.n_iters,
        })  # fmt: skip

    @classmethod
    def of(cls, key: Key) -> Call:
        """The call with this key."""
        k = dict(key)
        return cls(
            k["form"] == "deepseek", 1 if k["first"] == "rows" else 2, k["dtype"], k["n"], k["m"], k["iters"]
        )

    def __str__(self) -> str:
        return f"{self.form} {self.first} {self.dtype} {self.n}x{self.m} T={self.n_iters}"


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
    return tile(min(block, warps * device.warp_size), warps)


def thread_per_matrix(device: Device) -> Items:
    """As many matrices in a block as threads: Triton then leaves each matrix in one thread."""
    return tile(device.warp_size, 1)


def forward_default(call: Call, device: Device) -> tuple[Items, Items]:
    # 8 x 8 in one thread is 20 % faster than in two where a pivot leaves 49 entries of A, slower with 64
    packed = can_pack(call, 64 if call.deepseek else 16)
    small = call.n * call.m <= 16
    variant = ("packed", packed), ("paired", packed and small), ("pivoted", packed)
    if packed:
        return thread_per_matrix(device), variant
    # 64 entries a thread where that is still one warp without spills
    roomy = is_whole(call) and call.n * call.m >= 256
    return spread_over(call, device, 64 if roomy else 32, 64), variant


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
    packed = call.n == call.m and can_pack(call, 16)
    variant = (("packed", packed),)
    return thread_per_matrix(device) if packed else spread_over(call, device, 8, 32), variant


def implicit_cg_default(call: Call, device: Device) -> tuple[Items, Items]:
    return spread_over(call, device, 16, 32), ()


def whole_tiles(device: Device) -> tuple[Items, ...]:
    """One or two matrices a thread: with fewer matrices than threads Triton spreads them."""
    w = device.warp_size
    return tile(w, 1), tile(2 * w, 1), tile(2 * w, 2), tile(4 * w, 4)


def spread_tiles(
    call: Call, device: Device, entries: tuple[int, ...], a_barrier: int = 8
) -> tuple[Items, ...]:
    """Tiles with so many entries a thread; several warps only with `a_barrier` of them in each thread."""
    size = power_of_two(call.n) * power_of_two(call.m)
    threads = [
        w * device.warp_size for w in (1, 2, 4, 8) if w == 1 or size >= a_barrier * w * device.warp_size
    ]
    blocks = {(t * e // size, t // device.warp_size) for t in threads for e in entries if t * e >= size}
    return tuple(tile(*b) for b in sorted(blocks))


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


def pairing(call: Call) -> tuple[bool, ...]:
    """Values of `paired` that differ."""
    safe = pairs_are_safe(call.n, call.m, call.steps, TUNED_EPS if call.deepseek else 0.0)
    return (False, True) if safe else (False,)


def pivoting(call: Call) -> tuple[bool, ...]:
    """A pivot saves products wherever it is in range."""
    return (call.deepseek and pivot_is_safe(call.steps, TUNED_EPS),)


def forward_space(call: Call, device: Device) -> tuple[Grid, ...]:
    spread = {
        "config": spread_tiles(call, device, (8, 16, 32, 64, 128), 16),
        "packed": (False,),
        "paired": (False,),
        "pivoted": (False,),
    }
    if not can_pack(call, 64):
        return (spread,)
    whole = {
        "config": scheduled(whole_tiles(device)[:1], *persistent(device), *waves(device))
        + whole_tiles(device)[1:],
        "packed": (True,),
        "paired": pairing(call),
        "pivoted": pivoting(call),
    }
    few = {**spread, "config": spread_tiles(call, device, (4, 8) if can_pack(call, 16) else (16, 32, 64))}
    return whole, few


def backward_space(call: Call, device: Device) -> tuple[Grid, ...]:
    lengths = tuple(length for length in (4, 5, 7) if length < call.steps)
    spread = {
        "config": spread_tiles(call, device, (8, 16, 32), 16),
        "packed": (False,),
        "paired": (False,),
        "pivoted": (False,),
        "length": lengths,
    }
    if not can_pack(call, 16):
        return (spread,)
    w = device.warp_size
    whole = {
        "config": scheduled((tile(w, 1), tile(4 * w, 4)), *waves(device)),
        "packed": (True,),
        "paired": (False,),
        "pivoted": pivoting(call),
        # all in one segment: the fastest small batches, the longest to compile
        "length": (*lengths, call.steps),
    }
    few = {**spread, "config": spread_tiles(call, device, (4, 8)), "length": (5,)}
    return whole, few


def history_space(call: Call, device: Device) -> tuple[Grid, ...]:
    return ({"config": spread_tiles(call, device, (8, 16, 32, 64))},)


def implicit_direct_space(call: Call, device: Device) -> tuple[Grid, ...]:
    spread = {"config": spread_tiles(call, device, (4, 8, 16, 32)), "packed": (False,)}
    if call.n != call.m or not can_pack(call, 64):
        return (spread,)
    return {"config": whole_tiles(device), "packed": (True,)}, spread


def implicit_cg_space(call: Call, device: Device) -> tuple[Grid, ...]:
    return ({"config": spread_tiles(call, device, (4, 8, 16, 32, 64))},)
