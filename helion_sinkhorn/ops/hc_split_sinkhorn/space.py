"""What a config of hc_split_sinkhorn is chosen for, the config taken untuned, and what the tuner tries.

The iterations decide, so defaults and spaces are those of Sinkhorn's kernels for n x n matrices.
"""

from __future__ import annotations

from dataclasses import dataclass

from helion_sinkhorn.configs.store import Keyed


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
