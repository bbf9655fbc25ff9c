"""The calls of `hc_split_sinkhorn`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from helion_sinkhorn.lab.draws import SHORT, Draws, normal, unused_zero
from helion_sinkhorn.lab.row import Row
from helion_sinkhorn.ops.mhc.split.options import SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce


@dataclass(frozen=True)
class HcWorkload(Row):
    """One row of WORKLOADS: a call of `hc_split_sinkhorn`, what it stands for, and who loops over it."""

    SIZES = ("n", "tokens")

    n: int = 4
    tokens: int = 1
    """Tokens in an element of the batch; sums over tokens are tested element by element."""
    n_iters: int = 20
    eps: float = 1e-6
    dtype: torch.dtype = torch.float32
    parameters: str = "trained"
    """A name of PARAMETERS."""
    spread: float = 1.0
    """Deviation of the mixes."""
    post_mult: float = 2.0
    pre_eps: float | None = None
    post_eps: float = 0.0
    comb_order: str = "io"
    splits: int = 0
    """Partial sums that the mixes come in; 0 for the mixes themselves."""
    size: int = 16384
    """Entries of a token that the splits have projected; four streams of 4096."""
    norm_eps: float = 1e-6
    eps_outside: bool = False
    unused: str = ""
    """The upstream gradient, "dpre", "dpost" or "dcomb", that is None as nothing used the result."""

    @property
    def columns(self) -> int:
        """Entries of one token's mixes."""
        return self.n * self.n + 2 * self.n

    @property
    def entries(self) -> int:
        """Entries of the mixes of one element."""
        return self.tokens * self.columns

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_split_sinkhorn`."""
        return {
            "hc_mult": self.n, "sinkhorn_iters": self.n_iters, "eps": self.eps, "post_mult": self.post_mult,
            "pre_eps": self.pre_eps, "post_eps": self.post_eps, "comb_order": self.comb_order,
        }  # fmt: skip

    @property
    def arguments(self) -> SplitOptions:
        """The options as the operators take them."""
        pre_eps = self.eps if self.pre_eps is None else self.pre_eps
        gates = self.post_mult, pre_eps, self.post_eps
        return SplitOptions(self.n, self.n_iters, self.eps, *gates, self.comb_order)

    def reduce(self, squares: torch.Tensor) -> Reduce:
        """How partial sums with these squares become mixes."""
        return Reduce(squares, self.size, self.norm_eps, self.eps_outside)

    def given(self, mixes: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        """(mixes, keywords) of `hc_split_sinkhorn` for `make_inputs`, of one or more elements."""
        if not self.splits:
            return mixes, self.options
        partials, squares = self.parts(mixes)
        return partials, {**self.options, "reduce": self.reduce(squares)}

    def parts(self, mixes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(partial sums, squares), the splits first."""
        first = mixes.movedim(-3, 0)
        return first[..., :-1], first[..., -1]

    def draw(self, g: Draws) -> tuple[torch.Tensor, ...]:
        """(mixes, scale, base, dpre, dpost, dcomb).

        mixes (batch, tokens, n^2 + 2n) of `dtype`, scale (3,), base (n^2 + 2n,); the upstream gradients in
        float32 for results (batch, tokens, n), (batch, tokens, n) and (batch, tokens, n, n).  Partial sums
        are mixes (batch, splits, tokens, n^2 + 2n + 1) with the squares in the last column.
        """
        tokens, n = (self.batch, self.tokens), self.n
        if self.splits:
            mixes = self._partials(g)
        else:
            mixes = (self.spread * normal(g, *tokens, self.columns)).to(self.dtype)
        scale, base = PARAMETERS[self.parameters](n, g)
        upstream = {"dpre": normal(g, *tokens, n), "dpost": normal(g, *tokens, n)}
        upstream["dcomb"] = normal(g, *tokens, n, n)
        return mixes, scale, base, *unused_zero(upstream, self.unused).values()

    def _partials(self, g: Draws) -> torch.Tensor:
        """Partial sums that make mixes of this spread, and squares whose mean varies from token to token."""
        lead = self.batch, self.splits, self.tokens
        partials = self.spread * self.splits**-0.5 * normal(g, *lead, self.columns)
        squares = self.size / self.splits * normal(g, *lead, 1).square()
        return torch.cat([partials, squares], -1)


def _trained(n: int, g: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([0.7, 1.1, 0.9]), 0.5 * normal(g, n * n + 2 * n)


def _initial(n: int, g: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((3,), 0.01), torch.zeros(n * n + 2 * n)


def _checkpoint(n: int, g: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    gates = torch.tensor([3.0, -3.0]).repeat(n)[:n]
    return torch.ones(3), torch.cat([gates, torch.zeros(n), (6.0 * torch.eye(n) - 3.0).flatten()])


def _saturated(n: int, g: Draws) -> tuple[torch.Tensor, torch.Tensor]:
    gates = torch.linspace(-40.0, 40.0, 2 * n)
    return torch.ones(3), torch.cat([gates, normal(g, n * n)])


PARAMETERS = {"trained": _trained, "initial": _initial, "checkpoint": _checkpoint, "saturated": _saturated}
"""name -> (n, generator) -> (scale, base).  initial: 0.01 and 0, as models begin; checkpoint: gates at +3 and
-3, a diagonal 6 above the rest; saturated: gates from -40 to 40."""


_hc = HcWorkload.named("hc")
_MODEL = "a site of an mHC model (arXiv 2512.24880): a row of mixes a token and sublayer"
_BATCHES = (1 << 7, 1 << 10, 1 << 13, 1 << 17, 1 << 20)

ROWS = [
    *(
        _hc(f"{SHORT[dtype]}_b{batch}", batch, "tune bench" if dtype == torch.float32 else "tune", _MODEL,
            dtype=dtype)
        for batch in _BATCHES
        for dtype in (torch.float32, torch.bfloat16)
    ),
    *(_hc(f"partials_b{batch}", batch, "tune", "a site with its projection in splits", splits=8)
      for batch in _BATCHES),
    _hc("model", 4, "ci", _MODEL, tokens=257),
    _hc("bf16", 4, "ci", _MODEL, tokens=129, dtype=torch.bfloat16),
    _hc("fp16", 4, "ci", "half precision", tokens=129, dtype=torch.float16),
    _hc("initial", 4, "ci", "parameters as models begin", tokens=129, parameters="initial"),
    _hc("checkpoint", 4, "ci", "near a permutation", tokens=129, parameters="checkpoint"),
    _hc("peaked", 4, "ci stress", "mixes of 30 randn", tokens=129, spread=30.0),
    _hc("saturated", 4, "ci stress", "gates at their ends", tokens=129, parameters="saturated"),
    _hc("one_iteration", 4, "ci", "softmax and columns once", tokens=33, n_iters=1),
    _hc("outputs_last", 4, "ci", "comb by output stream", tokens=33, n_iters=3, post_mult=1.5,
        pre_eps=1e-2, post_eps=1e-3, comb_order="oi", eps=1e-3),
    _hc("two_streams", 4, "ci", "two streams", tokens=65, n=2),
    _hc("three_streams", 4, "ci", "padded in every axis", tokens=65, n=3),
    _hc("five_streams", 3, "ci", "padded in every axis", tokens=33, n=5, n_iters=5),
    _hc("eight_streams", 2, "ci", "eight streams", tokens=65, n=8),
    # a norm_eps that shows where it is added
    _hc("partials", 4, "ci", "a projection in splits", tokens=65, splits=8, norm_eps=1e-2),
    _hc("partials_padded", 4, "ci", "eps outside of the root, padded", tokens=33, n=3, n_iters=5, splits=11,
        size=300, norm_eps=1e-2, eps_outside=True),
    _hc("sixteen_streams", 2, "ci", "the most streams", tokens=33, n=16, n_iters=5),
    *(_hc(f"unused_{name}", 2, "ci", "a result that nothing used", tokens=9, n_iters=3, unused=f"d{name}")
      for name in ("pre", "post", "comb")),
]  # fmt: skip
