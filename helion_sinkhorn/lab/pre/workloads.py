"""The calls of `hc_pre`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import SHORT, Draws, draws, magnitudes, normal, uniform


@dataclass(frozen=True)
class HcPreWorkload:
    """One row of WORKLOADS: a call of `hc_pre`, what it stands for, and who loops over it."""

    name: str
    batch: int
    tags: frozenset[str]
    """The tags of SinkhornWorkload."""
    source: str
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
    def shape(self) -> dict[str, int]:
        """Sizes of one element, by name."""
        return {"n": self.n, "c": self.c, "tokens": self.tokens}

    @property
    def entries(self) -> int:
        """Entries of the streams of one element."""
        return self.tokens * self.n * self.c

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `hc_pre`, but for the norm's weight itself."""
        return {"y_norm_eps": self.norm_eps} if self.y_norm else {}

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu", there: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """(x, pre, dy), bit for bit the same everywhere, or drawn `there`, on the device.

        x (batch, tokens, n, C) of `dtype`, pre (batch, tokens, n) of `coefficients`; the upstream gradient dy
        (batch, tokens, C) of `dtype`; with a norm its weight (C,) in float32 comes last.
        """
        g, tokens = draws(seed, device, there), (self.batch, self.tokens)
        x, pre = VALUES[self.values](g, tokens, self.n, self.c)
        dy = normal(g, *tokens, self.c)
        made = [x.to(self.dtype), pre.to(self.coefficients), dy.to(self.dtype)]
        made += [1.0 + 0.25 * normal(g, self.c)] if self.y_norm else []
        return tuple(t.to(device) for t in made)


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


def _pre(name: str, batch: int, tags: str, source: str, **options) -> HcPreWorkload:
    return HcPreWorkload(f"hc_pre_{name}", batch, frozenset(tags.split()), source, **options)


def _normed(name: str, batch: int, tags: str, source: str, **options) -> HcPreWorkload:
    return _pre(f"normed_{name}", batch, tags, source, y_norm=True, **options)


_MODEL = "the collapse before a sublayer of an mHC model (arXiv 2512.24880)"
_NORM = "the input of a sublayer of an mHC model, as it takes it"
_BENCH = 1 << 13

PLAIN = [
    *(
        _pre(f"bf16_c{c}_b{batch}", batch, "tune bench" if batch == _BENCH else "tune", _MODEL, c=c)
        for c in (4096, 7168)
        for batch in (1 << 7, 1 << 10, _BENCH, 1 << 16)
    ),
    *(
        _pre(f"{SHORT[dtype]}_c4096_b{_BENCH}", _BENCH, "tune", _MODEL, dtype=dtype)
        for dtype in (torch.float32, torch.float16)
    ),
    _pre("model", 5, "ci", _MODEL),
    _pre("tokens", 1, "ci", "a number of tokens that no tile divides", tokens=257, c=130),
    _pre("fp32", 3, "ci", "single precision", tokens=11, c=520, dtype=torch.float32),
    _pre("fp16", 3, "ci", "half precision", tokens=11, c=520, dtype=torch.float16),
    _pre("signed", 3, "ci", "streams that cancel", tokens=11, c=260, values="signed"),
    _pre("peaked", 3, "ci stress", "entries of many magnitudes", tokens=11, c=260, values="peaked"),
    _pre("peaked_fp32", 3, "ci stress", "entries of many magnitudes", tokens=11, c=260, values="peaked",
         dtype=torch.float32),
    _pre("one_stream", 3, "ci", "each token takes one stream", tokens=11, c=130, values="one stream"),
    _pre("narrow_weights", 3, "ci", "weights of a model cast to bfloat16", tokens=11, c=130,
         coefficients=torch.bfloat16),
    _pre("one_token", 1, "ci", "one token", c=300),
    _pre("one_entry", 2, "ci", "streams of one entry", tokens=33, c=1),
    _pre("odd", 2, "ci", "rows that are not aligned", tokens=9, c=67),
    _pre("odd_fp32", 2, "ci", "rows that are not aligned", tokens=9, c=67, dtype=torch.float32),
    _pre("single", 2, "ci", "one stream", tokens=9, n=1, c=130),
    _pre("two_streams", 2, "ci", "two streams", tokens=9, n=2, c=130),
    _pre("three_streams", 2, "ci", "padded in every axis", tokens=9, n=3, c=130),
    _pre("five_streams", 2, "ci", "padded in every axis", tokens=9, n=5, c=67),
    _pre("eight_streams", 2, "ci", "eight streams", tokens=9, n=8, c=130),
    _pre("sixteen_streams", 2, "ci", "the most streams", tokens=5, n=16, c=67, dtype=torch.float32),
]  # fmt: skip

NORMED = [
    *(
        _normed(f"bf16_c{c}_b{batch}", batch, "tune", _NORM, c=c)
        for c in (4096, 5120, 7168)
        for batch in (1 << 7, 1 << 10, _BENCH, 1 << 16)
    ),
    *(
        _normed(f"{SHORT[dtype]}_c4096_b{_BENCH}", _BENCH, "tune", _NORM, dtype=dtype)
        for dtype in (torch.float32, torch.float16)
    ),
    *(
        _normed(f"bf16_1x{c}_b{batch}", batch, "tune", "the norm alone, as in hc_boundary", c=c, n=1)
        for c in (4096, 5120, 7168)
        for batch in (1 << 7, _BENCH)
    ),
    _normed("model", 5, "ci", _NORM),
    _normed("tokens", 1, "ci", "more tokens than programs of the backward", tokens=521, c=130),
    _normed("fp32", 3, "ci", "single precision", tokens=33, c=520, dtype=torch.float32),
    _normed("fp16", 3, "ci", "half precision", tokens=33, c=520, dtype=torch.float16),
    _normed("signed", 3, "ci", "streams that cancel", tokens=33, c=260, values="signed"),
    _normed("peaked", 3, "ci stress", "entries of many magnitudes", tokens=33, c=260, values="peaked"),
    _normed("peaked_fp32", 3, "ci stress", "entries of many magnitudes", tokens=33, c=260, values="peaked",
            dtype=torch.float32),
    _normed("small", 3, "ci", "an eps that shows, and a token of zeros", tokens=33, c=260,
            values="small", norm_eps=0.25, dtype=torch.float32),
    _normed("one_stream", 3, "ci", "each token takes one stream", tokens=33, c=130, values="one stream"),
    _normed("narrow_weights", 3, "ci", "weights of a model cast to bfloat16", tokens=33, c=130,
            coefficients=torch.bfloat16),
    _normed("one_token", 1, "ci", "one token", c=300),
    _normed("two_entries", 2, "ci", "the shortest rows", tokens=33, c=2, dtype=torch.float32),
    _normed("odd", 2, "ci", "rows that are not aligned", tokens=33, c=67),
    _normed("odd_fp32", 2, "ci", "rows that are not aligned", tokens=33, c=67, dtype=torch.float32),
    _normed("single", 2, "ci", "one stream", tokens=33, n=1, c=130),
    _normed("three_streams", 2, "ci", "three streams", tokens=33, n=3, c=130),
    _normed("sixteen_streams", 2, "ci", "the most streams", tokens=9, n=16, c=67, dtype=torch.float32),
]  # fmt: skip

ROWS = [*PLAIN, *NORMED]
