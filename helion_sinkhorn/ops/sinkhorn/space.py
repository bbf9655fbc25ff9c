"""The properties of a call that choose configs of Sinkhorn, the defaults, and what the tuner tries."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key, key_of, triton_version
from helion_sinkhorn.ops.sinkhorn.scaling import pairs_are_safe, pivot_is_safe, shifted_length
from helion_sinkhorn.ops.sinkhorn.schedules import capped, few_blocks, persistent, scheduled, waves
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two, tile

TUNED_ITERS = 20
"""The number of iterations of every tuned workload, which is that of mHC."""

TUNED_EPS = 1e-6
"""The eps of every tuned workload; variants that need a larger one are not tried."""

REGISTER_HISTORY_STEPS = 32
"""The most iterations of `sinkhorn_backward`, which keeps a start in registers for each segment."""

REGISTER_HISTORY_ENTRIES = 16 * 16
"""The most entries of a matrix of `sinkhorn_backward`."""

REGISTER_HISTORY_RESTARTED = 8 * 8
"""The most entries where the log form restarts."""

ORDERED_ENTRIES = 16
"""The fewest entries of a matrix in a thread for which the tuner tries sums in order (`in_order`).

From Triton 3.8 on they save 6 to 17 % of the instructions with 16 to 64 entries, and none with 4 (sm_90).
"""


@dataclass(frozen=True)
class SinkhornCall:
    """What a Sinkhorn config is chosen for: the arithmetic in canonical form, and the shape of a matrix."""

    deepseek: bool
    lead_axis: int
    dtype: str
    n: int
    m: int
    n_iters: int

    @property
    def steps(self) -> int:
        """The number of iterations; the first of the deepseek form is the softmax and one trail step."""
        return self.n_iters - 1 if self.deepseek else self.n_iters

    @property
    def form(self) -> str:
        return "deepseek" if self.deepseek else "log"

    @property
    def first(self) -> str:
        return "rows" if self.lead_axis == 1 else "cols"

    @property
    def key(self) -> Key:
        """The key of a stored entry."""
        return key_of({
            "form": self.form, "first": self.first, "dtype": self.dtype,
            "n": self.n, "m": self.m, "iters": self.n_iters,
        })  # fmt: skip

    @classmethod
    def of(cls, key: Key) -> SinkhornCall:
        """The call with this key."""
        k = dict(key)
        return cls(
            k["form"] == "deepseek", 1 if k["first"] == "rows" else 2, k["dtype"], k["n"], k["m"], k["iters"]
        )

    def as_tuned(self) -> SinkhornCall:
        """The call with the tuned number of iterations; a loop of another length needs the same tile."""
        return replace(self, n_iters=TUNED_ITERS)

    def __str__(self) -> str:
        return f"{self.form} {self.first} {self.dtype} {self.n}x{self.m} T={self.n_iters}"


def is_whole(call: SinkhornCall) -> bool:
    """Whether a tile holds no padding."""
    return call.n == power_of_two(call.n) and call.m == power_of_two(call.m)


def can_pack(call: SinkhornCall, most: int) -> bool:
    """Whether a thread may hold a whole matrix of at most `most` entries, loaded in pieces."""
    return is_whole(call) and 1 < call.n * call.m <= most


def spread_over(call: SinkhornCall, device: Device, fewest: int, most: int) -> Items:
    """Block and warps for a (block, n, m) tile: one warp with `fewest` entries a thread, if that fills it.

    One warp exchanges sums by shuffles, but several warps do it through shared memory and barriers, so more
    warps are used only beyond `most` entries a thread.
    """
    size = power_of_two(call.n) * power_of_two(call.m)
    warps = 1
    while size > warps * device.warp_size * most:
        warps *= 2
    block = max(1, warps * device.warp_size * fewest // size)
    return tile(min(block, warps * device.warp_size), warps)


def over_threads(call: SinkhornCall, device: Device, rows: int, columns: int, warps: int = 1) -> Items:
    """Block and warps where a thread holds `rows` x `columns` of a matrix and `warps` share the work of one.

    If a block has exactly the entries that its threads load at once, Triton has no choice of a layout.
    """
    threads = call.n // rows * (call.m // columns)
    warps = max(warps, threads // device.warp_size)
    return tile(warps * device.warp_size // threads, warps)


def can_hold(call: SinkhornCall, rows: int, columns: int) -> bool:
    """Whether threads may hold blocks of `rows` x `columns` of a matrix; Triton needs powers of two."""
    return is_whole(call) and rows <= call.n and columns <= call.m and rows * columns > 1


def forward_default(call: SinkhornCall, device: Device) -> tuple[Items, Items]:
    # at a restart the log form holds the logits and A, of which 8 x 4 entries fit
    restarts = not call.deepseek and call.steps > shifted_length(call.n, call.m)
    rows, columns = min(8, call.n), min(4 if restarts else 8, call.m)
    if not can_hold(call, rows, columns):
        variant = ("thread", (0, 0)), ("paired", False), ("pivoted", False), ("ordered", False)
        return spread_over(call, device, 32, 64), variant
    whole = (rows, columns) == (call.n, call.m)
    pivoted = whole and call.deepseek
    variant = (
        ("thread", (rows, columns)), ("paired", whole and call.n * call.m <= 16), ("pivoted", pivoted),
        ("ordered", False),
    )  # fmt: skip
    return over_threads(call, device, rows, columns), variant


def backward_default(call: SinkhornCall, device: Device) -> tuple[Items, Items]:
    rows, columns = min(8, call.n), min(4, call.m)
    if not can_hold(call, rows, columns):
        variant = (
            ("thread", (0, 0)), ("paired", False), ("pivoted", False), ("ordered", False),
            ("length", 5), ("lean", False),
        )  # fmt: skip
        # the masks of a padded matrix also take registers
        return spread_over(call, device, 8, 32), variant
    whole = (rows, columns) == (call.n, call.m)
    pivoted = whole and call.deepseek
    variant = (
        ("thread", (rows, columns)), ("paired", pivoted), ("pivoted", pivoted), ("ordered", False),
        ("length", 7 if whole else 5), ("lean", False),
    )  # fmt: skip
    return over_threads(call, device, rows, columns), variant


def history_default(call: SinkhornCall, device: Device) -> tuple[Items, Items]:
    rows, columns = min(8, call.n), min(8, call.m)
    if not can_hold(call, rows, columns):
        return spread_over(call, device, 16, 32), (("thread", (0, 0)), ("ordered", False))
    variant = ("thread", (rows, columns)), ("ordered", adds_in_order(call, device, rows, columns))
    return over_threads(call, device, rows, columns), variant


def adds_in_order(call: SinkhornCall, device: Device, rows: int, columns: int) -> bool:
    """Whether threads that share a matrix add in order (`in_order`) for its gradient with history.

    On an H200 this saves a gradient of 32 x 32 9 % of its time under Triton 3.9, and 2 % under 3.6.
    """
    return device.vendor == "nvidia" and min(rows, columns) > 1 and (rows, columns) != (call.n, call.m)


def spread_tiles(
    call: SinkhornCall, device: Device, entries: tuple[int, ...], a_barrier: int = 8
) -> tuple[Items, ...]:
    """Tiles with so many entries a thread; several warps only if each thread has `a_barrier` entries."""
    size = power_of_two(call.n) * power_of_two(call.m)
    threads = [
        w * device.warp_size for w in (1, 2, 4, 8) if w == 1 or size >= a_barrier * w * device.warp_size
    ]
    blocks = {(t * e // size, t // device.warp_size) for t in threads for e in entries if t * e >= size}
    return tuple(tile(*b) for b in sorted(blocks))


def pairing(call: SinkhornCall) -> tuple[bool, ...]:
    """The values of `paired` that make different programs."""
    safe = pairs_are_safe(call.n, call.m, call.steps, TUNED_EPS if call.deepseek else 0.0)
    return (False, True) if safe else (False,)


def pivoting(call: SinkhornCall) -> tuple[bool, ...]:
    """The values of `pivoted`: a pivot saves products wherever it is in range."""
    return (call.deepseek and pivot_is_safe(call.steps, TUNED_EPS),)


def threads_space(
    call: SinkhornCall, device: Device, blocks: tuple[tuple[int, int], ...], **variants
) -> list[Grid]:
    """A grid for each block of a matrix that a thread may hold."""
    return [
        {"config": (over_threads(call, device, *block),), "thread": (block,), **variants}
        for block in blocks
        if can_hold(call, *block) and over_threads(call, device, *block)[1][1] * device.warp_size <= 1024
    ]


def whole_space(call: SinkhornCall, device: Device, **variants) -> Grid:
    """A grid with each matrix in one thread."""
    return {
        "config": (
            *scheduled((over_threads(call, device, call.n, call.m),), *waves(device)),
            over_threads(call, device, call.n, call.m, 4),
        ),
        "thread": ((call.n, call.m),),
        **variants,
    }


def padded_space(call: SinkhornCall, device: Device, entries: tuple[int, ...], **variants) -> Grid:
    """A grid for matrices that Triton pads, where it decides which thread holds what."""
    return {"config": spread_tiles(call, device, entries, 16), "thread": ((0, 0),), **variants}


def forward_space(call: SinkhornCall, device: Device) -> tuple[Grid, ...]:
    plain = {"paired": (False,), "pivoted": (False,), "ordered": (False,)}
    if not is_whole(call):
        return (padded_space(call, device, (8, 16, 32, 64), **plain),)
    blocks = ((8, 8), (8, 4), (4, 4), (2, 4), (16, 8), (8, 2), (2, 2))
    grids = threads_space(call, device, blocks[: 7 if call.n < 64 else 5], **plain)
    if can_pack(call, 64):
        whole = whole_space(call, device, **plain | {"paired": pairing(call), "pivoted": pivoting(call)})
        if call.n * call.m <= 16:
            w = device.warp_size
            whole["config"] += scheduled((tile(w, 1),), *persistent(device))[1:]
        grids = [whole, *(g for g in grids if g["thread"] != whole["thread"])]
    for grid in grids:
        if math.prod(grid["thread"][0]) >= ORDERED_ENTRIES:
            grid["ordered"] = (False, True)
    return tuple(grids)


def backward_space(call: SinkhornCall, device: Device) -> tuple[Grid, ...]:
    plain = {"paired": (False,), "pivoted": (False,), "ordered": (False,), "lean": (False,)}
    lengths = tuple(length for length in (4, 5) if length < call.steps)
    # one iteration of the deepseek form is its first, which has no step
    whole = max(call.steps, 1)
    # under Triton 3.9 sums in order save 9 % of the instructions of 4 x 4 and 18 % of 8 x 8
    # (`iteration.total`), and none of shorter lines, whose entries would change threads under 3.6, which no
    # candidate may.  AMD's packed multiply-adds need a tree
    orders = (False, True) if device.vendor == "nvidia" and min(call.n, call.m) >= 4 else (False,)
    if not is_whole(call):
        return (padded_space(call, device, (8, 16, 32), length=lengths, **plain),)
    if not can_pack(call, 16):
        grids = threads_space(call, device, ((8, 8), (8, 4)), length=lengths, **plain)
        for grid in grids:
            if grid["thread"] == ((call.n, call.m),):
                grid["pivoted"], grid["ordered"] = pivoting(call), orders
                # for 8 x 8 in the deepseek form 32 bytes spill on sm_90 unless u_t is computed again; then a
                # segment of 7 fits
                grid["lean"] = False, True
                grid["length"] = tuple(length for length in (4, 5, 7) if length < call.steps)
        return (*grids, *threads_space(call, device, ((4, 4), (2, 4)), length=(min(5, whole),), **plain))
    variants = {"paired": pairing(call), "pivoted": pivoting(call), "ordered": orders}
    replayed = whole_space(
        call, device, **variants, lean=(False,), length=tuple(k for k in (7,) if k < call.steps)
    )
    kept = whole_space(call, device, **variants, lean=(True,), length=(whole,))
    kept["config"] += scheduled((over_threads(call, device, call.n, call.m, 4),), *capped(device))[1:]
    grids = [replayed, kept]
    if True in orders and triton_version() < (3, 9):
        # in programs with pairs that add in order, Triton 3.8 fuses one product more if 16 divides the batch,
        # so that a matrix would have other bits in another batch (measured with 4 x 4 on sm_90)
        apart = {"paired": (False,)}, {"paired": pairing(call)[1:], "ordered": (False,)}
        grids = [{**grid, **only} for grid in grids for only in apart]
    few = threads_space(call, device, ((2, 4), (4, 2), (2, 2)), length=(whole,), **plain)
    return (*grids, *few)


def history_space(call: SinkhornCall, device: Device) -> tuple[Grid, ...]:
    if not is_whole(call):
        tiles = spread_tiles(call, device, (8, 16, 32, 64))
        return ({"config": tiles, "thread": ((0, 0),), "ordered": (False,)},)
    grids = threads_space(call, device, ((8, 8), (8, 4), (4, 4), (16, 4)))
    for grid in grids:
        (config,), (block,) = grid["config"], grid["thread"]
        grid["config"] = scheduled((config,), *few_blocks(dict(config)["num_warps"], device))
        grid["ordered"] = (adds_in_order(call, device, *block),)
    return tuple(grids)
