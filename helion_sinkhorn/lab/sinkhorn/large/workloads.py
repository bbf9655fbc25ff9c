"""The calls of `sinkhorn` on large matrices in the log form, and with marginals."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import SHORT, draws, normal
from helion_sinkhorn.lab.sinkhorn.logits import make_logits


@dataclass(frozen=True)
class LargeWorkload:
    """One row of WORKLOADS: a call, what it stands for, and who loops over it."""

    name: str
    n: int
    m: int
    batch: int
    tags: frozenset[str]
    """The tags of SinkhornWorkload."""
    source: str
    n_iters: int = 3
    first: str = "rows"
    dtype: torch.dtype = torch.float32
    logits: str = "randn_1"
    spread: float = 0.0
    """The deviation of the logarithms of the marginals."""

    @property
    def shape(self) -> dict[str, int]:
        """Sizes of one matrix, by name."""
        return {"n": self.n, "m": self.m}

    @property
    def entries(self) -> int:
        """Entries of one matrix."""
        return self.n * self.m

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `sinkhorn`."""
        return {"n_iters": self.n_iters, "form": "log", "first": self.first}

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu", there: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """(logits, logarithms of both marginals, upstream gradient), bit for bit the same everywhere, or
        drawn `there`, on the device."""
        g = draws(seed, device, there)
        if there:
            x = normal(g, self.batch, self.n, self.m)
        else:
            x = make_logits(self.logits, self.batch, self.n, self.m, seed=seed, dtype=self.dtype)
        marginals = ((self.spread * normal(g, self.batch, k)).log_softmax(-1) for k in (self.n, self.m))
        made = x.to(self.dtype), *marginals, normal(g, self.batch, self.n, self.m).to(self.dtype)
        return tuple(t.to(device) for t in made)


def _large(n: int, m: int, batch: int, source: str, dtype: torch.dtype = torch.float32) -> LargeWorkload:
    name = f"large_{n}x{m}_{SHORT[dtype]}_b{batch}"
    return LargeWorkload(name, n, m, batch, frozenset({"tune", "bench"}), source, dtype=dtype)


ROWS = [
    _large(1024, 1024, 1, "SuperGlue: one pair of images, 100 iterations"),
    # as many as run together: they stay in L2
    _large(1024, 1024, 8, "a batch of matchings"),
    _large(256, 256, 64, "Gumbel-Sinkhorn, graph matching"),
]
