"""The calls of `quantize`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import Draws, normal, uniform
from helion_sinkhorn.lab.row import Row


@dataclass(frozen=True)
class QuantizeWorkload(Row):
    """One row of WORKLOADS: a call of `quantize`, what it stands for, and who loops over it."""

    SIZES = ("c", "tokens")

    c: int = 4096
    tokens: int = 1
    """Tokens in an element of the batch."""
    group: int = 128
    scales: str = "float32"
    layout: str = "row"
    floor: float = 1e-10
    dtype: torch.dtype = torch.bfloat16
    values: str = "model"
    """A name of VALUES."""

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `quantize`."""
        return {"group": self.group, "scales": self.scales, "layout": self.layout, "floor": self.floor}

    def draw(self, g: Draws) -> tuple[torch.Tensor, ...]:
        """(u (batch, tokens, C),)."""
        return (VALUES[self.values](g, self.batch, self.tokens, self.c).to(self.dtype),)


def _peaked(g: Draws, *sizes: int) -> torch.Tensor:
    of_token = torch.exp2((24 * uniform(g, *sizes[:-1], 1)).floor() - 12)
    return normal(g, *sizes) * torch.exp2(-(12 * uniform(g, *sizes)).floor()) * of_token


def _small(g: Draws, *sizes: int) -> torch.Tensor:
    u = normal(g, *sizes) * torch.exp2(-(40 * uniform(g, *sizes[:-1], 1)).floor())
    u[:, sizes[1] // 2] = 0.0
    return u


def _ties(g: Draws, *sizes: int) -> torch.Tensor:
    u = (448 * 32 * (2 * uniform(g, *sizes) - 1)).round() / 32
    u = torch.where(uniform(g, *sizes) < 0.5, u, (normal(g, *sizes) * 2**6).round() * 2.0**-10)
    u[..., ::16] = 448.0
    return u


def _edges(g: Draws, *sizes: int) -> torch.Tensor:
    u = normal(g, *sizes).clamp(-4, 4)
    at = 448.0 * torch.exp2((60 * uniform(g, *sizes[:-1], (sizes[-1] + 15) // 16)).floor() - 30)
    step = 1.0 + 2.0**-8 * ((3 * uniform(g, *at.shape)).floor() - 1.0)
    u[..., ::16] = at * step
    return u


VALUES = {"model": normal, "peaked": _peaked, "small": _small, "ties": _ties, "edges": _edges}
"""name -> (generator, batch, tokens, C) -> u.  peaked: tokens and entries of many binades; small: groups
below the floor, and a token of zeros; ties: a scale of 1, and entries in the middle of two e4m3, subnormal
ones too; edges: the largest of a group next to 448 times a power of two."""


_row = QuantizeWorkload.named("quantize")
_V4 = "the input of a product in float8, as DeepSeek-V4 is served"
_MX = "the same of DeepSeek-V4.1, MXFP8"
_COLUMN = {"layout": "column"}
_MXFP8 = {"group": 32, "scales": "e8m0", "layout": "column"}

ROWS = [
    *(
        _row(f"{name}_c{c}_b{batch}", batch, "tune", source, c=c, **options)
        for name, source, options in (("v4", _V4, _COLUMN), ("mx", _MX, _MXFP8))
        for c in (4096, 7168)
        for batch in (1 << 7, 1 << 13)
    ),
    _row("model", 3, "ci", _V4, tokens=5, c=512),
    _row("mx", 3, "ci", _MX, tokens=7, c=160, **_MXFP8),
    _row("columns", 2, "ci", "scales by columns", tokens=6, c=384, **_COLUMN),
    _row("powers", 3, "ci", "powers of two, a byte each", tokens=5, c=256, scales="e8m0",
         values="peaked"),
    _row("fp32", 2, "ci", "single precision", tokens=5, c=384, dtype=torch.float32, values="peaked"),
    _row("fp16", 2, "ci", "half precision", tokens=5, c=192, group=64, dtype=torch.float16),
    _row("short", 2, "ci", "the shortest groups", tokens=9, c=48, group=16, values="peaked"),
    _row("long", 2, "ci", "the longest groups", tokens=5, c=512, group=256, values="peaked"),
    _row("small", 2, "ci", "groups below the floor", tokens=9, c=128, group=32, values="small", floor=1e-4,
         dtype=torch.float32),
    _row("small_mx", 2, "ci", "the same", tokens=9, c=128, values="small", floor=1e-4, dtype=torch.float32,
         **_MXFP8),
    _row("ties", 2, "ci", "quotients in the middle", tokens=9, c=128, group=16, values="ties",
         dtype=torch.float32),
    _row("ties_mx", 2, "ci", "the same", tokens=9, c=128, values="ties", dtype=torch.float32, **_MXFP8),
    _row("edges", 2, "ci", "scales next to powers of two", tokens=9, c=256, group=32, scales="e8m0",
         values="edges", dtype=torch.float32),
    _row("one_group", 1, "ci", "one group", c=128),
]  # fmt: skip
