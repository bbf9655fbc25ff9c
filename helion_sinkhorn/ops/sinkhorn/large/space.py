"""The properties of a call on large matrices that choose configs, the defaults, and what the tuner tries."""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Key, Keyed, key_of
from helion_sinkhorn.runtime.space import Grid, Items, power_of_two

ABREAST = 8
"""Rows of a transposed matrix that a program reads at once.  In float32 they are the 32 bytes that memory
delivers together; in 16 bits the next 8 are the other half, since with 16 at once it spills.
"""
LONGEST_ABREAST = 2048
"""The longest rows of which it has as many; with longer ones it spills."""


TILE = 64
"""The longest side of a tile of sinkhorn_large_terms."""


@dataclass(frozen=True)
class LargeCall(Keyed):
    """The dtype of the logits, and the number and length of the lines that are normalised first."""

    dtype: str
    n: int
    m: int
    turned: bool = False
    """Whether lines are beside each other in memory and the entries of a line apart, as in a transpose."""

    @property
    def key(self) -> Key:
        # entries of calls whose lines are contiguous do not name it
        return key_of({name: value for name, value in vars(self).items() if value is not False})

    def __str__(self) -> str:
        return f"{self.dtype} {self.n}x{self.m}{' turned' if self.turned else ''}"


def together(call: LargeCall, device: Device, warps: int, entries: int) -> int:
    """Rows that a program has at once, if each thread has this many entries."""
    return max(1, warps * device.warp_size * entries // power_of_two(call.m))


def warps_of(call: LargeCall, device: Device) -> int:
    """Warps that share a row, with 16 entries for each thread."""
    return max(1, min(1024 // device.warp_size // 2, power_of_two(call.m) // (16 * device.warp_size)))


def lines(call: LargeCall) -> tuple[int, ...]:
    """Numbers of rows in a program that the tuner tries.

    Matrices of more than 8192 rows have more, since few programs add up the parts of the columns' sums, one
    from each program of rows.
    """
    times = power_of_two(-(-call.n // 8192))
    return tuple(k * times for k in (4, 8, 16, 32))


def is_abreast(call: LargeCall) -> bool:
    """Whether programs have ABREAST rows at once."""
    return call.turned and call.m <= LONGEST_ABREAST


def fewest_warps(call: LargeCall, device: Device, entries: int) -> int:
    """The fewest warps that share a block of rows: with 16 entries of a row in each thread, or `entries` of
    ABREAST rows.
    """
    if is_abreast(call):
        return max(4, ABREAST * power_of_two(call.m) // (entries * device.warp_size))
    return max(4, warps_of(call, device))


def tiles(call: LargeCall, device: Device) -> tuple[Items, ...]:
    """Configs with 8 entries of a block of rows or more in a thread, and few warps, half or twice as many."""
    return tuple(
        (("block_sizes", (together(call, device, w, entries),)), ("num_warps", w))
        for entries in ((8, 16, 32, 64) if is_abreast(call) else (8, 16, 32))
        for fewest in (fewest_warps(call, device, entries),)
        for w in (fewest // 2, fewest, 2 * fewest)
        if w * device.warp_size <= 1024 and w * device.warp_size * entries >= power_of_two(call.m)
    )


def rows_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # with eight rows a program, the parts of the columns' sums are an eighth of the matrix, and 1024 rows
    # make 128 programs; of a transposed matrix in 16 bits, 16 rows are the 32 bytes that memory delivers
    entries = 64 if is_abreast(call) else 16
    warps = fewest_warps(call, device, entries)
    block = min(ABREAST, together(call, device, warps, entries))
    least = 16 if is_abreast(call) and call.dtype != "float32" else 1
    return (("block_sizes", (block,)), ("num_warps", warps)), (("rows", max(lines(call)[1], least)),)


def steps_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    """`rows_default` with half the warps, for the kernels that take less time so."""
    (block, (_, warps)), variant = rows_default(call, device)
    if device.vendor != "amd" and not call.turned:
        # H200, T = 20, forward and backward in the log form: 0.60 and 0.81 of the time with rows of 5000
        # entries, 0.80 and 0.90 with 512, 0.83 and 0.92 with 1024 in bfloat16, 0.96 to 1.03 with 700, 1536,
        # 2048 and 4096; the first launch takes 0.83 to 0.96.  A gfx950 spills scalar registers so for 8193
        warps //= 2
    return (block, ("num_warps", warps)), variant


def rows_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    grids = []
    for config in tiles(call, device):
        block = dict(config)["block_sizes"][0]
        rows = tuple(k for k in lines(call) if block <= k and 2 * k <= max(call.n, 16))
        if rows:
            grids.append({"config": (config,), "rows": rows})
    return tuple(grids)


def columns_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32)), ("num_warps", 4)), ()


def of_logs_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (1, 32, 32, 32)), ("num_warps", 4)), ()


def columns_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return _tiled(((1, 16, 64), (1, 32, 32), (1, 32, 128), (1, 64, 32)), (1, 4))


def write_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    if call.turned:
        return (("block_sizes", (64, 32)), ("num_warps", 4)), ()
    columns = min(power_of_two(call.m), 1024)
    return (("block_sizes", (max(1, 2048 // columns), columns)), ("num_warps", 4)), ()


def whole_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    entries = 32 if is_abreast(call) else 8
    warps = fewest_warps(call, device, entries)
    return (("block_sizes", (together(call, device, warps, entries),)), ("num_warps", warps)), ()


def whole_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tiles(call, device)},)


def vectors_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", (128,)), ("num_warps", 4)), ()


def terms_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    # where lines are not aligned a thread has one column, and reads a factor of the rows for each product
    entries = 4 if call.dtype == "float32" else 8
    rows, warps = (16, 2) if (call.n if call.turned else call.m) % entries else (TILE, 4)
    if device.vendor == "amd":
        # of 2 waves a gfx950 spills 31 scalar registers
        warps = 4
    return (("block_sizes", (rows, TILE)), ("num_warps", warps)), ()


def terms_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return _tiled(((TILE, TILE), (32, TILE), (TILE, 32), (16, TILE)), (2, 4, 8))


def along(k: int, most: int = 2048) -> tuple[int, int]:
    """A tile for sums over lines of k entries that are beside each other: a short line has several too."""
    return min(most, max(16, power_of_two(k) // 4)), 1


def across(k: int) -> tuple[int, int]:
    """A tile for sums over 16 lines at a time, for each of their k entries."""
    return 16, along(k, 128)[0]


ALONG = (1024, 1), (2048, 1), (4096, 1), (1024, 4), (2048, 2)
ACROSS = (16, 64), (8, 128), (16, 128), (32, 128), (8, 256), (4, 512)


def wide_rows_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", across(call.n) if call.turned else along(call.m)), ("num_warps", 4)), ()


def wide_columns_default(call: LargeCall, device: Device) -> tuple[Items, Items]:
    return (("block_sizes", along(call.n) if call.turned else across(call.m)), ("num_warps", 4)), ()


def _tiled(blocks: tuple[tuple[int, ...], ...], warps: tuple[int, ...] = (4, 8)) -> tuple[Grid, ...]:
    return ({"config": tuple((("block_sizes", b), ("num_warps", w)) for b in blocks for w in warps)},)


def wide_rows_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return _tiled(ACROSS if call.turned else ALONG)


def wide_columns_space(call: LargeCall, device: Device) -> tuple[Grid, ...]:
    return _tiled(ALONG if call.turned else ACROSS)
