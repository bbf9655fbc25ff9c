"""The calls of `dot_compress`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import Draws, normal
from helion_sinkhorn.lab.row import Row


@dataclass(frozen=True)
class DotWorkload(Row):
    """One row of WORKLOADS: a call of `dot_compress`."""

    SIZES = ("m", "d", "k")

    m: int
    d: int
    k: int
    dtype: torch.dtype = torch.bfloat16
    has_z: bool = False
    precise: bool = False
    grad_scale: float = 1.0

    @property
    def entries(self) -> int:
        """Entries of x and y in one element of the batch."""
        return self.m * (self.d + self.k)

    @property
    def options(self) -> dict[str, object]:
        """The keywords of `dot_compress`, and whether z is given."""
        return {"z": self.has_z, "precise_intermediate": self.precise}

    @property
    def parts(self) -> int:
        """Numbers that carry an entry of the intermediate."""
        return 2 if self.precise and self.dtype != torch.float32 else 1

    def draw(self, g: Draws) -> tuple[torch.Tensor | None, ...]:
        """(x, y, z or None, upstream gradient) of `dtype`, standard normal."""
        x, y, z, grad = (
            normal(g, self.batch, *shape)
            for shape in ((self.m, self.d), (self.m, self.k), (self.d, self.k), (self.m, self.k))
        )
        made = x, y, z if self.has_z else None, self.grad_scale * grad
        return tuple(t if t is None else t.to(self.dtype) for t in made)


_dot = DotWorkload.named("dot")
_DCPP = "dot compression of embeddings (pytorch/helion#1661)"
_SIZES, _SMALL = {"m": 3219, "d": 256, "k": 64}, {"m": 129, "d": 48, "k": 5}

ROWS = [
    *(_dot(f"dcpp_b{batch}", batch, "tune bench", _DCPP, **_SIZES, grad_scale=0.1)
      for batch in (16, 128, 1152)),
    _dot("dcpp_precise", 1152, "tune", _DCPP, **_SIZES, precise=True),
    _dot("dcpp_fp32", 128, "tune", _DCPP, **_SIZES, dtype=torch.float32),
    _dot("tail", 5, "ci", "padded in every axis, z given", **_SMALL, has_z=True),
    _dot("reported", 5, "ci", _DCPP, **_SIZES, grad_scale=0.1),
    _dot("precise", 5, "ci", _DCPP, **_SIZES, precise=True),
    _dot("fp16", 2, "ci", "half precision, z given", m=1000, d=128, k=64, dtype=torch.float16, has_z=True),
    _dot("fp32", 2, "ci", "single precision, z given", m=1000, d=64, k=32, dtype=torch.float32, has_z=True),
    _dot("precise_z", 3, "ci", "padded, two numbers an entry, z given", **_SMALL, has_z=True, precise=True),
    _dot("wide", 2, "ci", "several blocks of x", m=300, d=1000, k=64),
]  # fmt: skip
