"""The calls of `hc_mixes`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import SHORT, Draws, normal
from helion_sinkhorn.lab.row import Row

ROW_DEVIATION = 0.02
"""Deviation of fn's entries, as models begin."""
MASSIVE = 1e3
"""Size of the one entry of a token that is above all others in `massive`."""


@dataclass(frozen=True)
class MixesWorkload(Row):
    """One row of WORKLOADS: a call of `hc_mixes`, what it stands for, and who loops over it."""

    SIZES = ("n", "c", "m", "tokens")

    n: int = 4
    c: int = 4096
    m: int = 24
    tokens: int = 1
    """Tokens in an element of the batch; dfn, a sum over tokens, is tested element by element."""
    dtype: torch.dtype = torch.bfloat16
    norm_eps: float = 1e-6
    norm_weight: bool = False
    precision: str = "float32"
    eps_outside: bool = False
    spread: float = 1.0
    """Deviation of the streams."""
    values: str = "normal"
    """A name of VALUES."""

    @property
    def columns(self) -> int:
        """K = n c, entries of one token's streams."""
        return self.n * self.c

    @property
    def entries(self) -> int:
        """Entries of the streams of one element."""
        return self.tokens * self.columns

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_mixes` other than the norm weight."""
        return {
            "norm_eps": self.norm_eps, "precision": self.precision, "eps_outside": self.eps_outside,
        }  # fmt: skip

    def draw(self, g: Draws) -> tuple[torch.Tensor | None, ...]:
        """(x, fn, norm weight or None, dmixes).

        x (batch, tokens, n, c) of `dtype`, of one stream (batch, tokens, c); fn (m, n c), the weight (n c,)
        and the upstream gradient (batch, tokens, m) in float32.
        """
        x = self.spread * normal(g, self.batch, self.tokens, self.n, self.c)
        VALUES[self.values](x.flatten(-2))
        fn = ROW_DEVIATION * normal(g, self.m, self.columns)
        weight = 1.0 + 0.25 * normal(g, self.columns) if self.norm_weight else None
        dmixes = normal(g, self.batch, self.tokens, self.m)
        return (x.flatten(-2) if self.n == 1 else x).to(self.dtype), fn, weight, dmixes


def _normal(x: torch.Tensor) -> None:
    pass


def _zero_token(x: torch.Tensor) -> None:
    x[:, x.size(1) // 2] = 0


def _massive(x: torch.Tensor) -> None:
    x[..., x.size(-1) // 3] = MASSIVE


VALUES = {"normal": _normal, "zero token": _zero_token, "massive": _massive}
"""name -> what it changes of standard normal streams (batch, tokens, K) in place.  zero token: one of each
element is 0; massive: one channel far above all others, as trained models have them."""


_mixes = MixesWorkload.named("mixes")
_MODEL = "a site of an mHC model (arXiv 2512.24880): the streams of a token, projected on its 24 mixes"
_BATCHES = (1 << 7, 1 << 10, 1 << 13, 1 << 16)

ROWS = [
    *(
        _mixes(f"bf16_c{c}_b{batch}", batch, "tune bench" if batch == 1 << 13 else "tune", _MODEL, c=c)
        for c in (4096, 7168)
        for batch in _BATCHES
    ),
    *(
        _mixes(f"{SHORT[dtype]}_c4096_b{batch}", batch, "tune", _MODEL, dtype=dtype)
        for dtype in (torch.float32, torch.float16)
        for batch in _BATCHES
    ),
    *(
        _mixes(f"tf32_{SHORT[dtype]}_c4096_b{batch}", batch, "tune", "TF32 products, asked for", dtype=dtype,
               precision="tf32")
        for dtype in (torch.bfloat16, torch.float32)
        for batch in _BATCHES
    ),
    _mixes("model", 3, "ci", _MODEL, tokens=17),
    _mixes("long", 3, "ci", "a sum of dfn over many tokens", c=40, tokens=257),
    _mixes("fp32", 3, "ci", "single precision", c=288, tokens=65, dtype=torch.float32),
    _mixes("fp16", 3, "ci", "half precision", c=288, tokens=65, dtype=torch.float16),
    _mixes("odd", 3, "ci", "odd C: no row but the first is aligned", n=3, c=211, m=15, tokens=33),
    _mixes("odd_fp32", 3, "ci", "odd C, a norm weight", c=77, tokens=33, dtype=torch.float32,
           norm_weight=True),
    _mixes("one_token", 4, "ci", "one token alone", c=300),
    _mixes("chunks", 2, "ci", "sums in chunks, the last one short", c=525, tokens=33),
    _mixes("one_row", 3, "ci", "one row", n=1, c=1000, m=1, tokens=33),
    _mixes("one_stream", 3, "ci", "one stream", n=1, c=257, m=3, tokens=65),
    _mixes("head", 3, "ci", "a head: a row for each stream", c=320, m=4, tokens=65),
    _mixes("two_streams", 3, "ci", "two streams", n=2, c=130, m=8, tokens=65),
    _mixes("five_streams", 3, "ci", "five streams", n=5, c=65, m=35, tokens=33),
    _mixes("eight_streams", 3, "ci", "eight streams", n=8, c=72, m=80, tokens=33),
    _mixes("sixteen_streams", 3, "ci", "the most rows", n=16, c=33, m=288, tokens=17),
    _mixes("narrow", 3, "ci", "fewer columns than a block, more rows", c=3, m=24, tokens=65),
    _mixes("zero_token", 3, "ci stress", "a token of zeros under V4.1's norm_eps", c=96, tokens=33,
           norm_eps=1e-20, values="zero token"),
    _mixes("zero_outside", 3, "ci stress", "a token of zeros, norm_eps added to the root", c=96, tokens=33,
           norm_eps=1e-3, eps_outside=True, values="zero token"),
    _mixes("tiny", 3, "ci stress", "squares as small as norm_eps", c=96, tokens=33, norm_eps=1e-20,
           spread=1e-10, dtype=torch.float32),
    _mixes("large", 3, "ci stress", "streams of 1e4 randn", c=96, tokens=33, spread=1e4),
    _mixes("massive", 3, "ci stress", "one channel above all others", c=96, tokens=33, values="massive"),
    _mixes("eps_outside", 3, "ci", "norm_eps added to the root, and large", c=96, tokens=33, norm_eps=0.1,
           eps_outside=True),
    _mixes("eps_inside", 3, "ci", "norm_eps under the root, and large", c=96, tokens=33, norm_eps=0.1,
           norm_weight=True),
    _mixes("tf32", 3, "ci", "TF32 products", c=288, tokens=65, precision="tf32"),
    _mixes("tf32_fp32", 3, "ci", "TF32 products of single precision", c=96, tokens=65, precision="tf32",
           dtype=torch.float32),
]  # fmt: skip
