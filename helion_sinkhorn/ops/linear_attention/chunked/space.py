"""Calls of the chunk kernels, their defaults, and what the tuner tries."""

from __future__ import annotations

import math
from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.runtime.space import Grid, Items

LARGEST_DK = 128
"""The largest Dk, since a program holds all channels of a chunk."""


@dataclass(frozen=True)
class ChunkCall(Keyed):
    """What the configs of the chunked kernels are chosen for: the operator's dtype, sizes and gates."""

    dtype: str
    dk: int
    dv: int
    gates: str
    """Names with spaces between: "g g_gamma gk" at most."""

    @property
    def chunk(self) -> int:
        return 64

    @property
    def width(self) -> int:
        """The number of columns of a tile of Dk."""
        return extent(self.dk)

    @property
    def operand(self) -> str:
        """The dtype of factors; float16 counts as float32, since a state may exceed its range."""
        return "bfloat16" if self.dtype == "bfloat16" else "float32"

    @property
    def least(self) -> float:
        """The smallest decay of half a chunk with which it is not computed level by level.

        Factors lie between this and its inverse, and 2^-56 keeps them in the range of float32.  The error of
        an exponent grows with it, so for float32 it is 2^-4.
        """
        return 2.0**-56 if self.operand == "bfloat16" else 2.0**-4

    @property
    def least_gate(self) -> float:
        """A chunk with a stronger gate computes its gradients level by level.

        Relative to the middle the gradients of gates are differences of sums over the chunk, and lose digits
        by cancellation: at 2^-4 less than the rounding of bfloat16 results.  float32 is to lose none.
        """
        return math.log(2.0**-4) if self.operand == "bfloat16" else 0.0

    def __str__(self) -> str:
        return f"{self.dtype} {self.dk}x{self.dv} {self.gates or 'no gate'}"


def why_not_chunked(gv: bool, packed: bool, dk: int) -> str:
    """Why the chunked method does not take a call with these arguments; empty if it does."""
    if gv:
        return "a decay of the values, gv, is no factor of the scores within a chunk"
    if packed:
        return "packed sequences, cu_seqlens, end within chunks"
    return f"chunks take Dk up to {LARGEST_DK}, this is {dk}" if dk > LARGEST_DK else ""


def extent(size):
    """A padded axis of Dk or Dv: ptxas 12.8 miscompiles products of narrower tiles (docs/dev/helion.md)."""
    return max(64, 1 << (size - 1).bit_length())


def matrix_unit_tile(warps: int, stages: int) -> Items:
    """A program with so many warps, which loads so many steps of a loop ahead."""
    return ("num_warps", warps), ("num_stages", stages)


def chunk_columns(call: ChunkCall) -> tuple[tuple[str, int], ...]:
    """Columns of Dv that a program takes by default."""
    return (("columns", min(64, extent(call.dv))),)


def chunk_scores_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # eight warps take 1.9 times as long on an H200, 2.2 times with float32 operands
    return matrix_unit_tile(4, 1), ()


def chunk_walk_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # on an H200 three steps in flight take 75 us and two take 96; a block of gfx942 has 64 KiB for them
    stages = (3 if call.operand == "bfloat16" else 2) - (device.shared_limit < 1 << 17)
    # two steps of float32 operands with 128 columns of Dk take 224 KiB, more than gfx950 has (compiled)
    if call.operand == "float32" and call.width > 64 and device.shared_limit < 7 << 15:
        stages = 1
    return matrix_unit_tile(4, stages), chunk_columns(call)


def chunk_gradients_default(call: ChunkCall, device: Device) -> tuple[Items, Items]:
    # with bfloat16 on an H200 eight warps take 2.1 times as long, and 128 columns 3 % longer; with float32
    # operands on an H100 eight warps take 1.1 to 2.4 times as long, and 0.56 to 1.35 times for 128 x 128.
    # Compiled for AMD, four waves spill 36 bytes and eight 708; for B200, four warps 1392 and eight 128
    wide = call.dtype == "float32" and min(call.width, extent(call.dv)) > 64
    eight = call.operand == "float32" and (wide or device.arch == "sm100")
    return matrix_unit_tile(8 if eight else 4, 1), chunk_columns(call)


def chunk_scores_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return ({"config": tuple(matrix_unit_tile(w, 1) for w in (4, 8))},)


def chunk_walk_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    return chunk_tiles(call, (4, 8), (1, 2, 3))


def chunk_gradients_space(call: ChunkCall, device: Device) -> tuple[Grid, ...]:
    # with eight warps bfloat16 takes 2.1 times as long on an H200; the loop has two rounds
    return chunk_tiles(call, (4,) if call.operand == "bfloat16" else (4, 8), (1, 3))


def chunk_tiles(call: ChunkCall, warps: tuple[int, ...], stages: tuple[int, ...]) -> tuple[Grid, ...]:
    """Grids for kernels that split Dv into tiles."""
    columns = tuple(sorted({min(most, extent(call.dv)) for most in (64, 128)}))
    tiles = tuple(matrix_unit_tile(w, s) for w in warps for s in stages)
    return ({"config": tiles, "columns": columns},)
