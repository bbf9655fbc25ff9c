"""How inputs are drawn: the same bits on every machine."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from helion_sinkhorn.lab.draws import normal


def _mask(batch: int, n: int, m: int, generator: np.random.Generator, density: float) -> torch.Tensor:
    """True where an entry stays: a random share of them, and one in every row and column."""
    keep = torch.from_numpy(generator.random((batch, n, m)) < density)
    for k in range(max(n, m)):
        keep[:, k % n, k % m] = True
    rows = torch.from_numpy(generator.random((batch, n)).argsort(-1))
    return keep.gather(-2, rows.unsqueeze(-1).expand(batch, n, m))


def _randn(scale: float) -> Callable[..., torch.Tensor]:
    return lambda batch, n, m, generator: scale * normal(generator, batch, n, m)


def _identity_like(off: float) -> Callable[..., torch.Tensor]:
    return lambda batch, n, m, _: torch.full((batch, n, m), off).masked_fill(
        torch.eye(n, m, dtype=torch.bool), 0.0
    )


def _noisy_permutation(batch, n, m, generator):
    x = 0.5 * normal(generator, batch, n, m)
    return torch.where(_mask(batch, n, m, generator, 0.0), x, x - 8.0)


def _moved(by: float, *where: int | slice) -> Callable[..., torch.Tensor]:
    """randn with these entries of each matrix so much higher."""

    def draw(batch, n, m, generator):
        x = normal(generator, batch, n, m)
        x[(slice(None), *where)] += by
        return x

    return draw


def _rows_apart(batch, n, m, generator):
    return normal(generator, batch, n, m) + 200.0 * normal(generator, batch, n, 1)


def _lines_apart(batch, n, m, generator):
    x = normal(generator, batch, n, m)
    return x + 200.0 * (normal(generator, batch, n, 1) + normal(generator, batch, 1, m))


def _masked(density: float) -> Callable[..., torch.Tensor]:
    def draw(batch, n, m, generator):
        x = normal(generator, batch, n, m)
        return x.masked_fill(~_mask(batch, n, m, generator, density), -math.inf)

    return draw


def _rank_one(batch, n, m, generator):
    return normal(generator, batch, n, 1) + normal(generator, batch, 1, m)


def _randn_1_and_3(batch, n, m, generator):
    x = normal(generator, batch, n, m)
    x[1::2] *= 3.0
    return x


def _uniform_4(batch, n, m, generator):
    return torch.from_numpy(4.0 * generator.random((batch, n, m), dtype=np.float32))


LOGITS: dict[str, Callable[..., torch.Tensor]] = {
    "randn_0.01": _randn(0.01),
    "randn_1": _randn(1.0),
    "randn_3": _randn(3.0),
    "randn_1_and_3": _randn_1_and_3,
    "randn_8": _randn(8.0),
    "randn_30": _randn(30.0),
    "uniform_4": _uniform_4,
    "identity_like": _identity_like(-8.0),
    "identity_like_4": _identity_like(-4.0),
    "identity_like_12": _identity_like(-12.0),
    "identity_like_16": _identity_like(-16.0),
    "noisy_permutation": _noisy_permutation,
    "one_up_8": _moved(8.0, 0, -1),
    "one_up_20": _moved(20.0, 0, -1),
    "one_up_40": _moved(40.0, 0, -1),
    "one_up_100": _moved(100.0, 0, -1),
    "one_down_40": _moved(-40.0, 0, -1),
    "one_column": _moved(15.0, slice(None), 0),
    "shared_column": _moved(-200.0, slice(-1), slice(1, None)),
    "rows_apart": _rows_apart,
    "column_below": _moved(-1000.0, slice(None), -1),
    "lines_apart": _lines_apart,
    "masked": _masked(0.6),
    "permutation": _masked(0.0),
    "rank_one": _rank_one,
}
"""name -> (batch, n, m, generator) -> logits.  randn_1_and_3: randn and three times
randn in turn; uniform_4: uniform(0, 4); identity_like: 0 on the diagonal,
-8 off it, or as much as the name says; noisy_permutation: randn / 2, 8 lower but for a permutation; one_up,
one_down: randn with one entry so much higher or lower; one_column: randn with a column 15 higher;
shared_column: randn with all rows but the last 200 lower beside their first entry, so that u and v of n = 8
grow by 7 in each of 50 iterations;
column_below: with one 1000 lower; lines_apart: randn with 200 randn added to each row and to each column; the
masks leave an entry in every row and column; a square permutation leaves nothing else."""

PEAKED = frozenset({
    "randn_8", "randn_30", "identity_like", "identity_like_12", "identity_like_16", "noisy_permutation",
    "one_up_20", "one_up_40",
})  # fmt: skip
"""Logits whose matrices come close to a permutation or to a single entry in a line."""


def make_logits(
    name: str, batch: int, n: int, m: int, *, seed: int = 0, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """The logits LOGITS[name], (batch, n, m), the same bits for the same seed on every machine."""
    return LOGITS[name](batch, n, m, np.random.default_rng(seed)).to(dtype)
