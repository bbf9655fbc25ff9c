"""What a config of hc_split_sinkhorn is chosen for, the config taken untuned, and what the tuner tries.

The iterations decide, so defaults and spaces are those of Sinkhorn's kernels for n x n matrices, and one
length of the backward's segments more.
"""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.configs.store import Keyed
from helion_sinkhorn.ops.sinkhorn import space as sinkhorn
from helion_sinkhorn.runtime.space import Grid


@dataclass(frozen=True)
class HcCall(Keyed):
    """The dtype of the mixes, the streams and the iterations; deepseek is False without eps."""

    dtype: str
    n: int
    n_iters: int
    deepseek: bool

    @property
    def m(self) -> int:
        """Columns of the matrix, as Sinkhorn's calls name them."""
        return self.n

    @property
    def steps(self) -> int:
        """Counted iterations; the first of the deepseek form is the softmax and one column step."""
        return self.n_iters - 1 if self.deepseek else self.n_iters

    def __str__(self) -> str:
        return f"{self.dtype} n={self.n} T={self.n_iters}{'' if self.deepseek else ' without eps'}"


def backward_space(call: HcCall, device: Device) -> tuple[Grid, ...]:
    """Sinkhorn's, with two segments of iterations in place of three where a thread holds whole matrices.

    Four streams and 20 iterations on sm_90: 3,902 instructions and 167 registers, three are 4,134 and 126.
    """
    half = (call.steps + 1) // 2
    return tuple(
        {**grid, "length": (*grid["length"], half)} if grid["length"] == (7,) and half > 7 else grid
        for grid in sinkhorn.backward_space(call, device)
    )
