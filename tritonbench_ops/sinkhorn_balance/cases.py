"""The inputs of `--op sinkhorn_balance`, its backends, and the bounds of their results."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable

import torch

from helion_sinkhorn import reference, sinkhorn_balance
from helion_sinkhorn.lab.balance.budget import error_budget, exact
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.options import BalanceOptions
from tritonbench_ops import flags
from tritonbench_ops.bounds import largest_share
from tritonbench_ops.inductor import compiled
from tritonbench_ops.sinkhorn_balance.arguments import FIELDS, PARSER

OPTIONS = BalanceOptions()
"""Every input is balanced as DeepSeek-V4.1 does."""

parse = PARSER.parse_args


def cases(options: argparse.Namespace, dtype: torch.dtype) -> list[BalanceWorkload]:
    """The bench workloads as `options` change them, each once."""
    return flags.bench(BalanceWorkload, options, FIELDS, dtype, settings=OPTIONS)


def inputs(case: BalanceWorkload, device: torch.device | str) -> tuple[torch.Tensor]:
    """(update (1, m, n),), drawn on the device: large ones take minutes to draw bit for bit the same."""
    (rows,) = case.make_inputs(device=device, there=True)
    return (rows.view(1, -1, case.n),)


def x_value(update: torch.Tensor) -> str:
    """An input as tables show it."""
    return "x".join(map(str, update.shape[1:]))


def bytes_moved(update: torch.Tensor) -> int:
    """Bytes of a read for the norms and for each row step, and of a write."""
    row_steps = (OPTIONS.steps + 1) // 2
    return (2 + row_steps) * update.nbytes


def operations(update: torch.Tensor) -> float:
    """Floating-point operations: two products with scales in each step, a square and an addition."""
    return 4.0 * OPTIONS.steps * update.numel()


def in_float32(update: torch.Tensor) -> torch.Tensor:
    """The specification in float32, rounded once."""
    return reference.sinkhorn_balance(update.float()).to(update.dtype)


BASELINE = "eager"
BACKENDS: dict[str, Callable[[], Callable[..., torch.Tensor]]] = {
    BASELINE: lambda: in_float32,
    "torch_compile": functools.partial(compiled, in_float32),
    "helion_sinkhorn_balance": lambda: sinkhorn_balance,
}
"""name -> what builds the function of an update."""
UNJUDGED = (BASELINE, "torch_compile")
"""Those that need not keep the budget."""


def share_of_budget(update: torch.Tensor, out: torch.Tensor) -> float:
    """The largest error of all entries, each in units of its own budget, computed where the tensors are."""
    budget = error_budget(update, OPTIONS, update.dtype)
    return largest_share(out, exact(update, OPTIONS), budget)
