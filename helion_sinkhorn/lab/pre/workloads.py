"""The calls of `hc_pre`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import Draws, magnitudes, normal, uniform
from helion_sinkhorn.lab.row import BENCH, Row, tuned


@dataclass(frozen=True)
class HcPreWorkload(Row):
    """One row of WORKLOADS: a call of `hc_pre`, what it stands for, and who loops over it."""

    SIZES = ("n", "c", "tokens")

    n: int = 4
    c: int = 4096
    tokens: int = 1
    """Tokens in an element of the batch."""
    dtype: torch.dtype = torch.bfloat16
    coefficients: torch.dtype = torch.float32
    values: str = "model"
    """A name of VALUES."""
    y_norm: bool = False
    """Whether the result is the RMSNorm of y."""
    norm_eps: float = 1e-6

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_pre`, but for the norm's weight itself."""
        return {"y_norm_eps": self.norm_eps} if self.y_norm else {}

    def draw(self, g: Draws) -> tuple[torch.Tensor, ...]:
        """(x, pre, dy).

        x (batch, tokens, n, C) of `dtype`, pre (batch, tokens, n) of `coefficients`; the upstream gradient dy
        (batch, tokens, C) of `dtype`; with a norm its weight (C,) in float32 comes last.
        """
        tokens = self.batch, self.tokens
        x, pre = VALUES[self.values](g, tokens, self.n, self.c)
        dy = normal(g, *tokens, self.c)
        made = x.to(self.dtype), pre.to(self.coefficients), dy.to(self.dtype)
        return (*made, 1.0 + 0.25 * normal(g, self.c)) if self.y_norm else made


Tokens = tuple[int, int]
Drawn = tuple[torch.Tensor, torch.Tensor]


def _model(g: Draws, tokens: Tokens, n: int, c: int) -> Drawn:
    return normal(g, *tokens, n, c), uniform(g, *tokens, n)


def _signed(g: Draws, tokens: Tokens, n: int, c: int) -> Drawn:
    return normal(g, *tokens, n, c), normal(g, *tokens, n)


def _peaked(g: Draws, tokens: Tokens, n: int, c: int) -> Drawn:
    return magnitudes(g, *tokens, n, c), magnitudes(g, *tokens, n)


def _one_stream(g: Draws, tokens: Tokens, n: int, c: int) -> Drawn:
    taken = torch.from_numpy(g.integers(0, n, tokens))
    return normal(g, *tokens, n, c), torch.eye(n)[taken]


def _small(g: Draws, tokens: Tokens, n: int, c: int) -> Drawn:
    x, pre = _model(g, tokens, n, c)
    x[:, tokens[1] // 2] = 0
    return 0.25 * x, pre


VALUES = {
    "model": _model, "signed": _signed, "peaked": _peaked, "one stream": _one_stream, "small": _small,
}  # fmt: skip
"""name -> (generator, tokens, n, C) -> (x, pre).  model: weights between 0 and 1, as gates give; signed: of
both signs, so that streams cancel; peaked: entries from 2^-12 to 2^12; one stream: each token takes one,
chosen at random; small: a norm's eps has a size beside the mean square, and one token is 0."""


_pre = HcPreWorkload.named("hc_pre")
_normed = functools.partial(HcPreWorkload.named("hc_pre_normed"), y_norm=True)
_MODEL = "the collapse before a sublayer of an mHC model (arXiv 2512.24880)"
_NORM = "the input of a sublayer of an mHC model, as it takes it"


def _judged(row: Callable[..., HcPreWorkload], tokens: int, fewer: int) -> list[HcPreWorkload]:
    """The rows that a collapse has alike with a norm and without one."""
    peaked, odd = {"tokens": tokens, "c": 260, "values": "peaked"}, {"tokens": fewer, "c": 67}
    return [
        row("fp32", 3, "ci", "single precision", tokens=tokens, c=520, dtype=torch.float32),
        row("fp16", 3, "ci", "half precision", tokens=tokens, c=520, dtype=torch.float16),
        row("signed", 3, "ci", "streams that cancel", tokens=tokens, c=260, values="signed"),
        row("peaked", 3, "ci stress", "entries of many magnitudes", **peaked),
        row("peaked_fp32", 3, "ci stress", "entries of many magnitudes", **peaked, dtype=torch.float32),
        row("one_stream", 3, "ci", "each token takes one stream", tokens=tokens, c=130, values="one stream"),
        row("narrow_weights", 3, "ci", "weights of a model cast to bfloat16", tokens=tokens, c=130,
            coefficients=torch.bfloat16),
        row("one_token", 1, "ci", "one token", c=300),
        row("odd", 2, "ci", "rows that are not aligned", **odd),
        row("odd_fp32", 2, "ci", "rows that are not aligned", **odd, dtype=torch.float32),
        row("single", 2, "ci", "one stream", tokens=fewer, n=1, c=130),
        row("three_streams", 2, "ci", "padded in every axis", tokens=fewer, n=3, c=130),
    ]  # fmt: skip


PLAIN = [
    *tuned(_pre, _MODEL, (4096, 7168)),
    _pre("model", 5, "ci", _MODEL),
    _pre("tokens", 1, "ci", "a number of tokens that no tile divides", tokens=257, c=130),
    *_judged(_pre, 11, 9),
    _pre("one_entry", 2, "ci", "streams of one entry", tokens=33, c=1),
    _pre("two_streams", 2, "ci", "two streams", tokens=9, n=2, c=130),
    _pre("five_streams", 2, "ci", "padded in every axis", tokens=9, n=5, c=67),
    _pre("eight_streams", 2, "ci", "eight streams", tokens=9, n=8, c=130),
    _pre("sixteen_streams", 2, "ci", "the most streams", tokens=5, n=16, c=67, dtype=torch.float32),
]

NORMED = [
    *tuned(_normed, _NORM, (4096, 5120, 7168), "tune"),
    *(
        _normed(f"bf16_1x{c}_b{batch}", batch, "tune", "the norm alone, as in hc_boundary", c=c, n=1)
        for c in (4096, 5120, 7168)
        for batch in (1 << 7, BENCH)
    ),
    _normed("model", 5, "ci", _NORM),
    _normed("tokens", 1, "ci", "more tokens than programs of the backward", tokens=521, c=130),
    *_judged(_normed, 33, 33),
    _normed("small", 3, "ci", "an eps that shows, and a token of zeros", tokens=33, c=260,
            values="small", norm_eps=0.25, dtype=torch.float32),
    _normed("two_entries", 2, "ci", "the shortest rows", tokens=33, c=2, dtype=torch.float32),
    _normed("sixteen_streams", 2, "ci", "the most streams", tokens=9, n=16, c=67, dtype=torch.float32),
]  # fmt: skip

ROWS = [*PLAIN, *NORMED]
