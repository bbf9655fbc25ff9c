"""The calls of `hc_post`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from helion_sinkhorn.lab.draws import Draws, magnitudes, normal, uniform
from helion_sinkhorn.lab.row import Row, tuned


@dataclass(frozen=True)
class HcPostWorkload(Row):
    """One row of WORKLOADS: a call of `hc_post`, what it stands for, and who loops over it."""

    SIZES = ("n", "c", "tokens")

    n: int = 4
    c: int = 4096
    tokens: int = 1
    """Tokens in an element of the batch; the gradient of the bias is tested element by element."""
    dtype: torch.dtype = torch.bfloat16
    coefficients: torch.dtype = torch.float32
    f_dtype: torch.dtype | None = None
    """The dtype of f; None for `dtype`."""
    has_bias: bool = False
    values: str = "model"
    """A name of VALUES."""
    comb_order: str = "io"

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_post`."""
        return {"comb_order": self.comb_order}

    def draw(self, g: Draws) -> tuple[torch.Tensor | None, ...]:
        """(f, x, post, comb, bias or None, upstream gradient).

        f (batch, tokens, C) of `f_dtype`, x (batch, tokens, n, C) of `dtype`, post (batch, tokens, n) and
        comb (batch, tokens, n, n), by `comb_order`, of `coefficients`, bias (C,) in float32; the upstream
        gradient like x.
        """
        tokens, n, c = (self.batch, self.tokens), self.n, self.c
        draw, weights = VALUES[self.values]
        f, x = draw(g, *tokens, c).to(self.f_dtype or self.dtype), draw(g, *tokens, n, c).to(self.dtype)
        post, comb = weights(g, tokens, n)
        comb = (comb if self.comb_order == "io" else comb.mT.contiguous()).to(self.coefficients)
        bias = normal(g, c) if self.has_bias else None
        return f, x, post.to(self.coefficients), comb, bias, normal(g, *tokens, n, c).to(self.dtype)


Weights = tuple[torch.Tensor, torch.Tensor]


def _model(g: Draws, tokens: tuple[int, int], n: int) -> Weights:
    return 2.0 * uniform(g, *tokens, n), 2.0 / n * uniform(g, *tokens, n, n)


def _signed(g: Draws, tokens: tuple[int, int], n: int) -> Weights:
    return normal(g, *tokens, n), normal(g, *tokens, n, n)


def _peaked(g: Draws, tokens: tuple[int, int], n: int) -> Weights:
    return magnitudes(g, *tokens, n), magnitudes(g, *tokens, n, n)


def _permutation(g: np.random.Generator, tokens: tuple[int, int], n: int) -> Weights:
    order = g.permuted(np.broadcast_to(np.arange(n), (*tokens, n)), axis=-1)
    return 2.0 * uniform(g, *tokens, n), torch.eye(n)[torch.from_numpy(order)]


VALUES = {
    "model": (normal, _model),
    "signed": (normal, _signed),
    "peaked": (magnitudes, _peaked),
    "permutation": (normal, _permutation),
}
"""name -> (entries of f and x, post and comb by input and output stream).  model: weights as gates and
Sinkhorn's matrices have them, between 0 and 2 and of mean 1/n; signed: of both signs, so that streams cancel;
peaked: from 2^-12 to 2^12; permutation: each token permutes its streams."""


_post = HcPostWorkload.named("hc_post")
_MODEL = "the expansion behind a sublayer of an mHC model (arXiv 2512.24880)"

ROWS = [
    *tuned(_post, _MODEL, (4096, 7168)),
    _post("model", 3, "ci", _MODEL),
    _post("tokens", 1, "ci", "a number of tokens that no tile divides", tokens=257, c=130),
    _post("fp32", 3, "ci", "single precision", tokens=11, c=260, dtype=torch.float32),
    _post("fp16", 3, "ci", "half precision", tokens=11, c=260, dtype=torch.float16),
    _post("bias", 3, "ci", "the bias of the sublayer", tokens=33, c=130, has_bias=True),
    _post("bias_fp32", 3, "ci", "the bias of the sublayer", tokens=17, c=67, has_bias=True,
        dtype=torch.float32),
    _post("outputs_last", 3, "ci", "comb by output stream", tokens=11, c=130, has_bias=True,
        comb_order="oi"),
    _post("signed", 3, "ci", "streams that cancel", tokens=11, c=260, values="signed"),
    _post("peaked", 3, "ci stress", "entries of many magnitudes", tokens=11, c=130, values="peaked"),
    _post("peaked_fp32", 3, "ci stress", "entries of many magnitudes", tokens=11, c=130, values="peaked",
        dtype=torch.float32),
    _post("permutation", 3, "ci", "comb a permutation", tokens=11, c=130, values="permutation"),
    _post("narrow_weights", 3, "ci", "weights of a model cast to bfloat16", tokens=11, c=130,
        coefficients=torch.bfloat16),
    _post("wide_output", 3, "ci", "a sublayer's output in float32", tokens=11, c=130, has_bias=True,
        f_dtype=torch.float32),
    _post("one_token", 1, "ci", "one token", c=300),
    _post("two_entries", 2, "ci", "the shortest streams that kernels take", tokens=33, c=2),
    _post("odd", 2, "ci", "rows that are not aligned", tokens=9, c=67),
    _post("single", 2, "ci", "one stream", tokens=9, n=1, c=130, has_bias=True),
    _post("two_streams", 2, "ci", "two streams", tokens=9, n=2, c=130),
    _post("three_streams", 2, "ci", "padded in every axis", tokens=9, n=3, c=130, has_bias=True),
    _post("five_streams", 2, "ci", "padded in every axis", tokens=9, n=5, c=67, comb_order="oi"),
    _post("eight_streams", 2, "ci", "eight streams", tokens=9, n=8, c=67),
    _post("sixteen_streams", 2, "ci", "the most streams", tokens=5, n=16, c=67, dtype=torch.float32),
]  # fmt: skip
