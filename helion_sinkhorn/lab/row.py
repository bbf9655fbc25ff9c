"""What the rows of WORKLOADS have in common, whatever operator they call."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from helion_sinkhorn.lab.draws import SHORT, Draws, draws

BENCH = 1 << 13
"""Tokens of a call that benchmarks time."""
TRIED = "tried", 1, frozenset(), "a trial"
"""Name, batch, tags and source of a row that the tuner makes of a kernel's call."""


class Sized:
    """A row whose sizes are fields of it."""

    SIZES: ClassVar[tuple[str, ...]]

    @property
    def shape(self) -> dict[str, int]:
        """Sizes of one element of the batch, by name."""
        return {name: getattr(self, name) for name in self.SIZES}

    @property
    def entries(self) -> int:
        """Entries of one element of the batch."""
        return math.prod(self.shape.values())


@dataclass(frozen=True)
class Row(Sized):
    """One row of WORKLOADS: a call, what it stands for, and who loops over it."""

    name: str
    batch: int
    tags: frozenset[str]
    """ci: accuracy gate; tune: has a tuned config; bench: tritonbench and reports; stress: extreme inputs."""
    source: str

    @classmethod
    def named(cls, prefix: str) -> Callable[..., Any]:
        """A function that makes rows of (name without prefix, batch, tags with spaces, source, **fields)."""

        def row(name: str, batch: int, tags: str, source: str, **fields: Any) -> Row:
            return cls(f"{prefix}_{name}", batch, frozenset(tags.split()), source, **fields)

        return row

    def draw(self, g: Draws) -> tuple[torch.Tensor | None, ...]:
        """The inputs of the call, in their dtypes."""
        raise NotImplementedError

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu", there: bool = False
    ) -> tuple[torch.Tensor | None, ...]:
        """The tensors of `draw`, bit for bit the same everywhere, or drawn `there`, on the device."""
        return tuple(t if t is None else t.to(device) for t in self.draw(draws(seed, device, there)))


def tuned(
    row: Callable[..., Any], source: str, columns: Collection[int], tags: str = "tune bench"
) -> list[Any]:
    """Rows of many tokens: so many columns in bfloat16, and 4096 in the other dtypes.

    Args:
        tags: of the rows that benchmarks time.
    """
    return [
        *(
            row(f"bf16_c{c}_b{batch}", batch, tags if batch == BENCH else "tune", source, c=c)
            for c in columns
            for batch in (1 << 7, 1 << 10, BENCH, 1 << 16)
        ),
        *(
            row(f"{SHORT[dtype]}_c4096_b{BENCH}", BENCH, "tune", source, dtype=dtype)
            for dtype in (torch.float32, torch.float16)
        ),
    ]
