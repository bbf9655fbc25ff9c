"""The calls of `dot_compress`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import draws, normal
from helion_sinkhorn.lab.row import Sized


@dataclass(frozen=True)
class DotWorkload(Sized):
    """One row of WORKLOADS: a call of `dot_compress`."""

    SIZES = ("m", "d", "k")

    name: str
    batch: int
    m: int
    d: int
    k: int
    tags: frozenset[str]
    """The tags of SinkhornWorkload."""
    source: str
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

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu", there: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
        """(x, y, z or None, upstream gradient) of `dtype`, standard normal, the same bits everywhere or, if
        `there`, drawn on the device."""
        generator = draws(seed, device, there)
        x, y, z, grad = (
            normal(generator, self.batch, *shape)
            for shape in ((self.m, self.d), (self.m, self.k), (self.d, self.k), (self.m, self.k))
        )
        made = x, y, z if self.has_z else None, self.grad_scale * grad
        return tuple(t if t is None else t.to(device, self.dtype) for t in made)


def _dot(name: str, batch: int, m: int, d: int, k: int, tags: str, source: str, **options) -> DotWorkload:
    return DotWorkload(f"dot_{name}", batch, m, d, k, frozenset(tags.split()), source, **options)


_DCPP = "dot compression of embeddings (pytorch/helion#1661)"


ROWS = [
    *(
        _dot(f"dcpp_b{batch}", batch, 3219, 256, 64, "tune bench", _DCPP, grad_scale=0.1)
        for batch in (16, 128, 1152)
    ),
    _dot("dcpp_precise", 1152, 3219, 256, 64, "tune", _DCPP, precise=True),
    _dot("dcpp_fp32", 128, 3219, 256, 64, "tune", _DCPP, dtype=torch.float32),
    _dot("tail", 5, 129, 48, 5, "ci", "padded in every axis, z given", has_z=True),
    _dot("reported", 5, 3219, 256, 64, "ci", _DCPP, grad_scale=0.1),
    _dot("precise", 5, 3219, 256, 64, "ci", _DCPP, precise=True),
    _dot("fp16", 2, 1000, 128, 64, "ci", "half precision, z given", dtype=torch.float16, has_z=True),
    _dot("fp32", 2, 1000, 64, 32, "ci", "single precision, z given", dtype=torch.float32, has_z=True),
    _dot("precise_z", 3, 129, 48, 5, "ci", "padded, two numbers an entry, z given", has_z=True, precise=True),
    _dot("wide", 2, 300, 1000, 64, "ci", "several blocks of x"),
]
