"""KERNELS: every Helion kernel body with the config it takes when none was tuned for the call.

Importing this module imports Helion; the package does so on the first call that needs it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import helion
import torch

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key, key_of
from helion_sinkhorn.kernels import bodies, dot_compress, implicit, linear_attention
from helion_sinkhorn.kernels import dot_compress_space as space
from helion_sinkhorn.kernels import linear_attention_chunked as chunked
from helion_sinkhorn.kernels.linear_attention import WalkCall
from helion_sinkhorn.kernels.linear_attention_chunked import ChunkCall, extent
from helion_sinkhorn.scaling import pairs_are_safe, pivot_is_safe

Items = tuple[tuple[str, Any], ...]
Grid = dict[str, tuple[Any, ...]]
"""Candidate values: "config" lists parts of Helion configs, every other name is a variant's values."""
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


@dataclass(frozen=True)
class Choice:
    """A kernel with everything a launch needs to know, and where that came from."""

    kernel: str
    config: Items
    variant: Items
    source: str
    stored: bool = False
    """Whether it was looked up, and not the kernel's default or named by the caller."""

    def __str__(self) -> str:
        values = ", ".join(f"{k}={v}" for k, v in (*self.config, *self.variant))
        return f"{self.kernel} ({values}) from {self.source}"


@dataclass(frozen=True)
class Kernel:
    """One row of KERNELS."""

    body: Callable[..., None]
    default: Callable[[Call, Device], tuple[Items, Items]]
    space: Callable[[Call, Device], tuple[Grid, ...]]
    """What the tuner tries: the product of each grid's values."""
    call: type[Any] = Call
    """What its configs are chosen for: hashable, of JSON values, with `key`, `of(key)` and `dtype`."""
    products: str = "ieee"
    """Of float32 matrices on NVIDIA: as they are, or "tf32x3", three products of parts, to 2^-21."""


def power_of_two(k: int) -> int:
    """The smallest power of two that is at least k: the extent Triton gives an axis of k."""
    return 1 << (k - 1).bit_length()


def largest_run(size: int, most: int) -> int:
    """Entries of an axis that one thread holds side by side: a power of two up to `most` that divides it."""
    return min(1 << (most.bit_length() - 1), size & -size)


def is_whole(call: Call) -> bool:
    """Whether a tile holds no padding."""
    return call.n == power_of_two(call.n) and call.m == power_of_two(call.m)


def can_pack(call: Call, most: int) -> bool:
    """Whether a thread may hold a whole matrix of at most `most` entries, loaded in pieces."""
    return is_whole(call) and 1 < call.n * call.m <= most


def tile(block: int, warps: int) -> Items:
    """`block` matrices a block of `warps` warps."""
    return ("block_sizes", (block,)), ("num_warps", warps)


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


def walk_tile(call: WalkCall, device: Device, rk: int, rv: int, warps: int, many: int = 1) -> Items:
    """So many warps with `many` states of rk x rv entries in a thread, or as few as hold a whole result."""
    lanes = max(1, device.warp_size // power_of_two(-(-call.summed // rk)))
    units = power_of_two(-(-call.kept // rv))
    warps = max(1, min(warps, units // lanes))
    return tile(min(units, lanes * warps * many), warps)


def walk_default(call: WalkCall, device: Device) -> tuple[Items, Items]:
    # sums over 8 threads; loads of fewer entries than threads need no shared memory
    rk = largest_run(call.summed, min(16, max(1, call.summed // 8)))
    rv = largest_run(call.kept, min(8, max(1, 32 // rk)))
    warps = min(16, max(4, power_of_two(call.summed) // 16))
    return walk_tile(call, device, rk, rv, warps), (("rk", rk), ("rv", rv), ("count", 8))


def walk_space(call: WalkCall, device: Device) -> tuple[Grid, ...]:
    lanes = max(1, power_of_two(call.summed) // 8)
    grids: dict[Items, None] = {}
    # of 8 threads a sum, 32 or 16 entries each
    for entries, warps, many in ((32, 4, 1), (32, 8, 1), (16, 8, 1), (16, 16, 1), (16, 4, 1), (16, 8, 2)):
        rk = largest_run(call.summed, lanes)
        rv = largest_run(call.kept, min(8, max(1, entries // rk)))
        config = (walk_tile(call, device, rk, rv, warps, many),)
        grids[("config", config), ("rk", (rk,)), ("rv", (rv,)), ("count", (8,))] = None
    return tuple(map(dict, grids))


def matrix_unit_tile(warps: int, stages: int) -> Items:
    """A program of so many warps that loads so many steps of a loop ahead."""
    return ("num_warps", warps), ("num_stages", stages)


def chunk_columns(call: ChunkCall, most: int) -> tuple[tuple[str, int], ...]:
    """Columns of Dv that a program takes."""
    return (("columns", min(most, extent(call.dv))),)


def chunk_scores_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # eight warps take 1.6 times as long on an H200; float32 tiles take twice the registers
    return matrix_unit_tile(4 if call.operand == "bfloat16" else 8, 1), ()


def chunk_walk_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # three steps in flight: 76 us against 97 with two on an H200
    return matrix_unit_tile(4, 3 if call.operand == "bfloat16" else 2), chunk_columns(call, 64)


def chunk_gradients_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # eight warps take 1.7 times as long on an H200, 128 columns as long
    return matrix_unit_tile(4 if call.operand == "bfloat16" else 8, 1), chunk_columns(call, 64)


def chunk_scores_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(matrix_unit_tile(w, 1) for w in (4, 8))},)


def chunk_tiles_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    """Of the kernels that cut Dv into tiles."""
    columns = tuple(sorted({min(most, extent(call.dv)) for most in (64, 128)}))
    tiles = tuple(matrix_unit_tile(warps, stages) for warps in (4, 8) for stages in (1, 2, 3))
    return ({"config": tiles, "columns": columns},)


KERNELS = {
    "sinkhorn_forward": Kernel(bodies.sinkhorn_forward, forward_default, forward_space),
    "sinkhorn_backward": Kernel(bodies.sinkhorn_backward, backward_default, backward_space),
    "sinkhorn_backward_history": Kernel(bodies.sinkhorn_backward_history, history_default, history_space),
    "sinkhorn_implicit_direct": Kernel(
        implicit.sinkhorn_implicit_direct, implicit_direct_default, implicit_direct_space
    ),
    "sinkhorn_implicit_cg": Kernel(implicit.sinkhorn_implicit_cg, implicit_cg_default, implicit_cg_space),
    "dot_compress_product": Kernel(
        dot_compress.dot_compress_product, space.product_default, space.product_space, space.DotCall
    ),
    "dot_compress_apply": Kernel(
        dot_compress.dot_compress_apply, space.apply_default, space.apply_space, space.DotCall
    ),
    "dot_compress_expand": Kernel(
        dot_compress.dot_compress_expand, space.expand_default, space.expand_space, space.DotCall
    ),
    "linear_attention_walk": Kernel(
        linear_attention.linear_attention_walk, walk_default, walk_space, WalkCall
    ),
    "linear_attention_chunk_scores": Kernel(
        chunked.linear_attention_chunk_scores, chunk_scores_default, chunk_scores_space, ChunkCall, "tf32x3"
    ),
    "linear_attention_chunk_walk": Kernel(
        chunked.linear_attention_chunk_walk, chunk_walk_default, chunk_tiles_space, ChunkCall, "tf32x3"
    ),
    "linear_attention_chunk_gradients": Kernel(
        chunked.linear_attention_chunk_gradients,
        chunk_gradients_default,
        chunk_tiles_space,
        ChunkCall,
        "tf32x3",
    ),
}


def default_choice(name: str, call: Call, device: Device) -> Choice:
    """What serves a call that nothing was tuned for."""
    return Choice(name, *KERNELS[name].default(call, device), "the kernel's default")


def candidates(name: str, call: Call, device: Device) -> tuple[Choice, ...]:
    """The default and every point of the kernel's space, each once."""

    def points() -> Iterator[tuple[Items, Items]]:
        yield KERNELS[name].default(call, device)
        for grid in KERNELS[name].space(call, device):
            variants = {k: v for k, v in grid.items() if k != "config"}
            for config, *values in itertools.product(grid["config"], *variants.values()):
                yield config, tuple(zip(variants, values, strict=True))

    distinct = {tuple(tuple(sorted(items)) for items in point): point for point in points()}
    return tuple(Choice(name, *point, "the kernel's space") for point in distinct.values())


@functools.cache
def build(name: str, config: Items, interpret: bool = False) -> helion.Kernel:
    """The Helion kernel `name` with this fixed config: nothing is ever autotuned by a call.

    interpret=True runs the body eagerly on CPU tensors (Helion's reference mode).
    """
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in config}
    mode = {"ref_mode": helion.RefMode.EAGER} if interpret else {}
    return helion.kernel(
        KERNELS[name].body,
        config=helion.Config(**values),
        static_shapes=False,
        dot_precision="ieee" if torch.version.hip else KERNELS[name].products,
        # what it calls a tensor operation on the host is `x is not None`
        ignore_warnings=[helion.exc.TensorOperationInWrapper],
        **mode,
    )
