"""The calls of `hc_site`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from helion_sinkhorn.lab.draws import Draws, normal, uniform, unused_zero
from helion_sinkhorn.lab.mixes.workloads import VALUES, MixesWorkload
from helion_sinkhorn.lab.row import BENCH, Row
from helion_sinkhorn.lab.split.workloads import PARAMETERS, HcWorkload
from helion_sinkhorn.ops.mhc.options import SiteOptions


@dataclass(frozen=True)
class HcSiteWorkload(Row):
    """One row of WORKLOADS: a call of `hc_site`, what it stands for, and who loops over it."""

    SIZES = ("n", "c", "tokens")

    n: int = 4
    c: int = 4096
    tokens: int = 1
    """Tokens in an element of the batch; sums over tokens are tested element by element."""
    dtype: torch.dtype = torch.bfloat16
    precision: str = "float32"
    n_iters: int = 20
    eps: float = 1e-6
    norm_eps: float = 1e-6
    norm_weight: bool = False
    eps_outside: bool = False
    post_mult: float = 2.0
    pre_eps: float | None = None
    post_eps: float = 0.0
    comb_order: str = "io"
    values: str = "normal"
    """The streams, a name of hc_mixes's VALUES."""
    parameters: str = "trained"
    """scale and base, a name of hc_split_sinkhorn's PARAMETERS."""
    spread: float = 1.0
    """Deviation of the mixes."""
    crosses: bool = False
    """Whether `hc_boundary` of these streams is tested too."""
    own_weights: bool = False
    """Whether its collapse takes the weights of its own site: pre_next is None, as in DeepSeek-V4."""
    every_argument: bool = False
    """Whether it also has a bias and a weight of the norm; f + bias and fn times the weight are exact."""
    unused: str = ""
    """The upstream gradients, "dresidual", "dy", "dpre", "dpost" and "dcomb" with spaces between, that are
    None as nothing used the results."""

    @property
    def m(self) -> int:
        """Rows of fn, the mixes of a token."""
        return self.n * (self.n + 2)

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_site`, but for the norm weight."""
        return {**self.of_reference, "precision": self.precision}

    @property
    def of_reference(self) -> dict[str, object]:
        """The options of the specification, which has one precision."""
        return {
            "sinkhorn_iters": self.n_iters, "eps": self.eps, "norm_eps": self.norm_eps,
            "post_mult": self.post_mult, "pre_eps": self.pre_eps, "post_eps": self.post_eps,
            "comb_order": self.comb_order, "eps_outside": self.eps_outside,
        }  # fmt: skip

    @property
    def arguments(self) -> SiteOptions:
        """The options as launches take them."""
        return SiteOptions(**self.options).checked()

    @property
    def of_mixes(self) -> MixesWorkload:
        """The projection of such a site."""
        return MixesWorkload(
            self.name, self.batch, frozenset(), self.source, self.n, self.c, self.m, self.tokens, self.dtype,
            self.norm_eps, precision=self.precision, eps_outside=self.eps_outside, values=self.values,
        )  # fmt: skip

    @property
    def of_split(self) -> HcWorkload:
        """Its coefficients."""
        return HcWorkload(
            self.name, self.batch, frozenset(), self.source, self.n, self.tokens, self.n_iters, self.eps,
            torch.float32, self.parameters, self.spread, self.post_mult, self.pre_eps, self.post_eps,
            self.comb_order,
        )  # fmt: skip

    def draw(self, g: Draws) -> tuple[torch.Tensor | None, ...]:
        """(x, fn, norm weight or None, scale, base, dresidual, dy, dpost, dcomb).

        x (batch, tokens, n, C) of `dtype`, fn (n^2 + 2n, n C), the weight (n C,), scale (3,) and base in
        float32; the upstream gradients (batch, tokens, n, C) and (batch, tokens, C) of `dtype`, (batch,
        tokens, n) and (batch, tokens, n, n) in float32.
        """
        tokens, n, size = (self.batch, self.tokens), self.n, self.n * self.c
        x = normal(g, *tokens, n, self.c)
        VALUES[self.values](x.flatten(-2))
        fn = self.spread * size**-0.5 * normal(g, self.m, size)
        weight = 1.0 + 0.25 * normal(g, size) if self.norm_weight else None
        scale, base = PARAMETERS[self.parameters](n, g)
        dresidual, dy = normal(g, *tokens, n, self.c), normal(g, *tokens, self.c)
        dpost, dcomb = normal(g, *tokens, n), normal(g, *tokens, n, n)
        upstream = {"dresidual": dresidual.to(self.dtype), "dy": dy.to(self.dtype), "dpost": dpost}
        upstream = unused_zero(upstream | {"dcomb": dcomb}, self.unused)
        return x.to(self.dtype), fn, weight, scale, base, *upstream.values()

    def make_update(self, x: torch.Tensor, seed: int = 1) -> tuple[torch.Tensor, ...]:
        """(x, f, post, comb, pre_next, dpre) for `hc_boundary`: x, cut to 8 bits, f and coefficients so short
        that the new streams are exact in float32, and not in a narrow dtype."""
        g, tokens, n = np.random.default_rng(seed), (self.batch, self.tokens), self.n
        x, f = (((32 * t).round() / 32).clamp(-4, 4) for t in (x.float(), normal(g, *tokens, self.c)))
        post, comb = ((127 * uniform(g, *tokens, *s)).round() / 64 for s in ((n,), (n, n)))
        weights, dpre = (normal(g, *tokens, n) for _ in range(2))
        (dpre,) = unused_zero({"dpre": dpre}, self.unused).values()
        return x.to(self.dtype), f.to(self.dtype), post, comb / 2, weights, dpre


_site = HcSiteWorkload.named("hc_site")
_MODEL = "a site of an mHC model before its sublayer (arXiv 2512.24880)"

ROWS = [
    *(
        _site(f"bf16_c{c}_b{batch}", batch, "tune bench" if (c, batch) == (4096, BENCH) else "tune", _MODEL,
              c=c)
        for c in (4096, 5120, 7168)
        for batch in (1 << 4, 1 << 6, 1 << 7, 1 << 8, 1 << 10, BENCH, 1 << 16)
        if c != 5120 or batch <= 1 << 8 or batch == BENCH
    ),
    _site("model", 2, "ci", _MODEL, c=1024, tokens=9),
    _site("long", 2, "ci", "sums over many tokens", c=40, tokens=257),
    _site("fp32", 3, "ci", "single precision", c=96, tokens=33, dtype=torch.float32),
    _site("fp16", 3, "ci", "half precision", c=96, tokens=33, dtype=torch.float16,
          crosses=True, every_argument=True),
    _site("odd", 3, "ci", "odd C: no row but the first is aligned", n=3, c=211, tokens=17, crosses=True),
    _site("odd_fp32", 3, "ci", "odd C, a norm weight", c=77, tokens=17, dtype=torch.float32,
          norm_weight=True),
    _site("one_token", 4, "ci", "one token alone", c=300),
    _site("two_streams", 3, "ci", "two streams", n=2, c=130, tokens=33),
    _site("five_streams", 3, "ci", "five streams", n=5, c=65, tokens=17, n_iters=5),
    _site("eight_streams", 3, "ci", "eight streams", n=8, c=72, tokens=17, n_iters=5),
    _site("sixteen_streams", 2, "ci", "the most streams", n=16, c=33, tokens=9, n_iters=5),
    _site("narrow", 3, "ci", "fewer columns than a block, more rows", c=3, tokens=33),
    _site("saturated", 3, "ci stress", "gates at their ends", c=96, tokens=33, parameters="saturated",
          dtype=torch.float32),
    _site("peaked", 3, "ci stress", "mixes of 30 randn, near permutations", c=96, tokens=33, spread=30.0),
    _site("zero_token", 3, "ci stress", "a token of zeros under V4.1's norm_eps", c=96, tokens=17,
          norm_eps=1e-20, values="zero token"),
    _site("massive", 3, "ci stress", "one channel above all others", c=96, tokens=17, values="massive"),
    _site("constants", 3, "ci", "no constant of a default, comb by output stream", c=96, tokens=17,
          n_iters=3, eps=1e-3, norm_eps=0.1, post_mult=1.5, pre_eps=1e-2, post_eps=1e-3, comb_order="oi",
          dtype=torch.float32, crosses=True, every_argument=True),
    _site("eps_outside", 3, "ci", "norm_eps added to the root, and large", c=96, tokens=17, norm_eps=0.1,
          eps_outside=True),
    _site("own_weights", 3, "ci", "DeepSeek-V4's boundary, collapsed by the weights that it makes", n=3, c=70,
          tokens=17, n_iters=3, dtype=torch.float32, crosses=True, own_weights=True, every_argument=True),
    _site("tf32", 3, "ci", "TF32 products", c=96, tokens=33, precision="tf32"),
    _site("tf32_fp32", 3, "ci", "TF32 products of single precision", c=96, tokens=17, precision="tf32",
          dtype=torch.float32),
    *(_site(f"unused_{name}", 2, "ci", "a result that nothing used", c=24, tokens=5, n_iters=3,
            dtype=torch.float32, crosses=True, unused=f"d{name}")
      for name in ("residual", "y", "pre", "post", "comb")),
    _site("unused_coefficients", 2, "ci", "the last collapse of a model", c=24, tokens=5, n_iters=3,
          dtype=torch.float32, crosses=True, unused="dpre dpost dcomb"),
]  # fmt: skip
