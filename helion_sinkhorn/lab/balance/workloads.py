"""The calls of `sinkhorn_balance`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.draws import SHORT, Draws, normal, uniform
from helion_sinkhorn.lab.row import Row
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average

DEFAULTS = BalanceOptions()


@dataclass(frozen=True)
class BalanceWorkload(Row):
    """One row of WORKLOADS: a call of `sinkhorn_balance`, what it stands for, and who loops over it."""

    SIZES = ("n", "tokens")

    n: int = 256
    tokens: int = 1
    """Rows of a matrix of the batch; rows that are tuned or timed are those of one matrix."""
    dtype: torch.dtype = torch.float32
    values: str = "model"
    """A name of VALUES."""
    settings: BalanceOptions = DEFAULTS
    average: Average | None = None
    """What an optimizer averages gradients by, where the row is a step of it and no call of the function."""

    @property
    def options(self) -> dict[str, object]:
        """Keywords of `sinkhorn_balance`."""
        return self.settings._asdict()

    def draw(self, g: Draws) -> tuple[torch.Tensor, ...]:
        """(update (batch, m, n),), of a step (the gradient, its average if there is momentum, the weight)."""
        sizes = self.batch, self.tokens, self.n
        drawn = [VALUES[self.values](g, *sizes)]
        if self.average is not None:
            drawn += [VALUES[self.values](g, *sizes)] * (self.average.momentum > 0)
            drawn.append(normal(g, *sizes))
        return tuple(t.to(self.dtype) for t in drawn)


def _model(g: Draws, b: int, m: int, n: int) -> torch.Tensor:
    rows, columns = torch.exp2(8 * uniform(g, b, m, 1) - 4), torch.exp2(6 * uniform(g, b, 1, n) - 3)
    update = normal(g, b, m, n) * rows * columns
    for k, of in enumerate(update):
        of[(3 + k) % 7 :: 7] *= 2.0**-20
        of[(5 + k) % 11 :: 11] = 0.0
    return update


def _sparse(g: Draws, b: int, m: int, n: int) -> torch.Tensor:
    update = _model(g, b, m, n)
    update[:, :, 1::5] = 0.0
    # m * sqrt(n) is 31 at least: 99 % of the entries of a row may be gone, and few rows all
    return update * (uniform(g, b, m, n) < 0.2)


def _peaked(g: Draws, b: int, m: int, n: int) -> torch.Tensor:
    return normal(g, b, m, n) * torch.exp2(24 * uniform(g, b, m, n) - 12)


VALUES = {"normal": normal, "model": _model, "sparse": _sparse, "peaked": _peaked}
"""name -> (generator, matrices, m, n) -> update.  model: rows and columns of many magnitudes, some masked,
some zero; sparse: most entries zero too, and some columns; peaked: entries from 2^-12 to 2^12."""

_SINKGD = BalanceOptions(steps=10, zero_row_threshold=0.0, scale="none")
_MODEL = "the embedding and the prediction head of DeepSeek-V4.1"
_NESTEROV, _PLAIN, _NONE = Average(0.95, True), Average(0.9, False), Average(0.0, False)
_TABLE = "a shard of the lookup tables of DeepSeek-V4.1"
_WEIGHT = "a weight of a model trained with SinkGD (arXiv 2502.06742)"
_balance = BalanceWorkload.named("balance")


def _large(
    m: int, n: int, dtype: torch.dtype, source: str, average: Average | None = None, **fields
) -> BalanceWorkload:
    step, tags = ("", "tune bench") if average is None else ("step_", "tune")
    name = f"{step}{SHORT[dtype]}_n{n}_b{m}"
    return _balance(name, m, tags, source, n=n, dtype=dtype, values="normal", average=average, **fields)


ROWS = [
    _large(129280, 7168, torch.bfloat16, _MODEL),
    _large(129280, 4096, torch.float32, _MODEL),
    _large(3_000_000, 256, torch.float32, _TABLE),
    _large(4096, 14336, torch.bfloat16, _WEIGHT, settings=_SINKGD),
    _large(129280, 7168, torch.bfloat16, _MODEL, _NESTEROV),
    _large(129280, 4096, torch.float32, _MODEL, _NESTEROV),
    _large(3_000_000, 256, torch.float32, _TABLE, _NESTEROV),
    _large(4096, 14336, torch.bfloat16, _WEIGHT, _NONE, settings=_SINKGD),
    _balance("model", 3, "ci", "masked rows and rows of zeros", n=64, tokens=99),
    _balance("bf16", 3, "ci", "bfloat16", n=130, tokens=75, dtype=torch.bfloat16),
    _balance("fp16", 2, "ci", "half precision", n=72, tokens=50, dtype=torch.float16, values="normal"),
    _balance("wide", 1, "ci", "rows that several warps share", n=4100, tokens=37),
    _balance("tall", 1, "ci", "several shares of rows", n=16, tokens=1031),
    _balance("normal", 2, "ci", "no row is masked", n=40, tokens=60, values="normal"),
    _balance("sparse", 2, "ci", "columns of zeros", n=48, tokens=90, values="sparse"),
    _balance("peaked", 2, "ci stress", "entries of many magnitudes", n=33, tokens=67, values="peaked"),
    _balance("sinkgd", 2, "ci", _WEIGHT, n=96, tokens=64, settings=_SINKGD),
    _balance("columns_first", 2, "ci", "columns first", n=20, tokens=45,
             settings=BalanceOptions(first="cols")),
    _balance("columns_last", 2, "ci", "a last step of columns", n=20, tokens=45,
             settings=BalanceOptions(first="cols", steps=3)),
    _balance("one_step", 2, "ci", "rows of norm 1", n=20, tokens=45,
             settings=BalanceOptions(steps=1, scale="none")),
    _balance("eps", 2, "ci", "an eps beside the norms", n=24, tokens=40, values="normal",
             settings=BalanceOptions(eps=0.5)),
    _balance("two_rows", 2, "ci", "a matrix of two rows", n=24, tokens=2, values="normal"),
    _balance("step_model", 3, "ci", "a step with Nesterov's momentum", n=64, tokens=99, average=_NESTEROV),
    _balance("step_bf16", 3, "ci", "bfloat16", n=130, tokens=75, dtype=torch.bfloat16, average=_NESTEROV),
    _balance("step_fp16", 2, "ci", "half precision", n=72, tokens=50, dtype=torch.float16, values="normal",
             average=_NESTEROV),
    _balance("step_average", 2, "ci", "momentum alone", n=96, tokens=40, dtype=torch.bfloat16,
             average=_PLAIN),
    _balance("step_peaked", 2, "ci stress", "entries of many magnitudes", n=33, tokens=67,
             dtype=torch.bfloat16, values="peaked", average=_NESTEROV),
    _balance("step_wide", 1, "ci", "rows that several warps share", n=4100, tokens=37, average=_NESTEROV),
    _balance("step_plain", 2, "ci", "no momentum, and masked rows", n=40, tokens=50, dtype=torch.bfloat16,
             average=_NONE),
    _balance("step_sinkgd", 2, "ci", _WEIGHT, n=96, tokens=64, dtype=torch.bfloat16, average=_NONE,
             settings=_SINKGD),
    _balance("step_columns_last", 2, "ci", "a last step of columns", n=24, tokens=50, average=_PLAIN,
             settings=BalanceOptions(steps=4)),
    _balance("step_two_rows", 2, "ci", "a matrix of two rows", n=24, tokens=2, values="normal",
             average=_NESTEROV),
]  # fmt: skip
