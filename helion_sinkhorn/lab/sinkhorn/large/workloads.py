"""The calls of `sinkhorn` on large matrices in both forms, and with marginals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from helion_sinkhorn.lab.draws import SHORT, draws, normal
from helion_sinkhorn.lab.row import Sized
from helion_sinkhorn.lab.sinkhorn.logits import make_logits
from helion_sinkhorn.ops.sinkhorn.api import DEFAULT_EPS
from helion_sinkhorn.ops.sinkhorn.large.sides import LONGEST

WHOLE = 32
"""The longest line that a program has whole in workloads of long ones."""


@dataclass(frozen=True)
class LargeWorkload(Sized):
    """One row of WORKLOADS: a call, what it stands for, and who loops over it."""

    SIZES = ("n", "m")

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
    """The deviation of the logarithms of the marginals; the deepseek form has none."""
    form: str = "log"
    below: float = 0.0
    """How far the logits are moved down."""
    longest: int = LONGEST
    """The length of lines beyond which an iteration takes two reads."""

    @property
    def wide(self) -> bool:
        """Whether no program has a whole line of the side that is normalised first."""
        return (self.m if self.first == "rows" else self.n) > self.longest

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `sinkhorn`."""
        return {"n_iters": self.n_iters, "form": self.form, "first": self.first}

    @property
    def eps(self) -> float:
        """What the deepseek form adds; 0 in the log form."""
        return DEFAULT_EPS if self.form == "deepseek" else 0.0

    def make_inputs(
        self, seed: int = 0, device: torch.device | str = "cpu", there: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """(logits, logarithms of both marginals, upstream gradient), of the deepseek form without the
        marginals; bit for bit the same everywhere, or drawn `there`, on the device."""
        g = draws(seed, device, there)
        if there:
            x = normal(g, self.batch, self.n, self.m)
        else:
            x = make_logits(self.logits, self.batch, self.n, self.m, seed=seed, dtype=self.dtype)
        sides = () if self.eps else (self.n, self.m)
        marginals = ((self.spread * normal(g, self.batch, k)).log_softmax(-1) for k in sides)
        made = (
            (x - self.below).to(self.dtype),
            *marginals,
            normal(g, self.batch, self.n, self.m).to(self.dtype),
        )
        return tuple(t.to(device) for t in made)


def _large(n: int, m: int, batch: int, source: str, **options: Any) -> LargeWorkload:
    of = LargeWorkload("", n, m, batch, frozenset({"tune", "bench"}), source, **options)
    form = "" if of.form == "log" else f"_{of.form}"
    first = "" if of.first == "rows" else f"_{of.first}"
    return replace(of, name=f"large_{n}x{m}_{SHORT[of.dtype]}_b{batch}{form}{first}")


def _judged(name: str, source: str, **options: Any) -> LargeWorkload:
    of = {"n": 44, "m": 40, "batch": 3, "n_iters": 3, "spread": 1.5, **options}
    # a line of 72 entries stands for one of 98304; users have short ones only where ranks share the rows
    # and no gradient is needed
    tags = {"ci", "scaled"} if "longest" in of else {"ci"}
    return LargeWorkload(f"large_{name}", tags=frozenset(tags), source=source, **of)


ROWS = [
    _judged("rows", "blocks of rows and lanes that are padded"),
    _judged("columns_first", "the other side is complete", n=40, m=44, first="cols", n_iters=5),
    _judged("one_iteration", "nothing between the first step and the last", n_iters=1),
    _judged("peaked", "DINO's logits over its temperature", logits="randn_8", spread=0.5),
    _judged("identity", "near a permutation", logits="identity_like", n_iters=5, spread=0.5),
    _judged("low", "whatever stands beside the matrix is larger", below=200.0),
    _judged("bf16", "logits of 16 bits", dtype=torch.bfloat16),
    _judged("last_apart", "rows whose last entry is apart", m=33, n_iters=4),
    _judged("256_columns", "peaked, and many iterations", n=24, m=256, n_iters=20, logits="randn_8",
            spread=0.5),
    _judged("deepseek", "the deepseek form", form="deepseek"),
    _judged("deepseek_one_iteration", "its first step alone, below what stands beside the matrix",
            form="deepseek", n_iters=1, below=200.0),
    _judged("deepseek_columns_first", "the other side is complete", form="deepseek",
            n=40, m=44, first="cols", n_iters=5, logits="randn_3"),
    _judged("deepseek_1024_columns", "u and v that grow by the ratio of the sides in each iteration",
            form="deepseek", n=12, m=1024, n_iters=25, logits="noisy_permutation"),
    _judged("deepseek_bf16", "no iteration between the first and the last", form="deepseek", n_iters=2,
            dtype=torch.bfloat16),
    _judged("wide", "long lines, and a column that loses in every row", m=72, longest=WHOLE,
            logits="column_below"),
    _judged("wide_columns_first", "long columns", n=72, m=44, longest=WHOLE, first="cols", n_iters=2),
    _judged("wide_deepseek", "long lines of the deepseek form", m=72, longest=WHOLE, form="deepseek"),
    _large(1024, 1024, 1, "SuperGlue: one pair of images, 100 iterations"),
    # as many as run together: they stay in L2
    _large(1024, 1024, 8, "a batch of matchings"),
    _large(1025, 1025, 8, "SuperGlue's matchings with their dustbins"),
    _large(256, 256, 64, "Gumbel-Sinkhorn, graph matching"),
    _large(1024, 1024, 1, "one large matrix, doubly stochastic", form="deepseek"),
    _large(1024, 1024, 8, "a batch of large matrices", form="deepseek"),
    _large(256, 256, 64, "mixing of 256 streams", form="deepseek"),
    _large(1229, 98304, 1, "DINO with samples first: lines longer than a program can have whole"),
    _large(1229, 98304, 1, "DINO: prototypes first, whose entries are apart", first="cols"),
    _large(1024, 1024, 8, "a batch of matchings by columns first", first="cols"),
]  # fmt: skip
