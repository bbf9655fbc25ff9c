"""The steps of sinkhorn_balance as passes over the matrix, which kernels or PyTorch make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from helion_sinkhorn.ops.balance import eager
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.runtime.pieces import computing


class Passes(Protocol):
    """What computes a pass; c (B, n) and d (B, m) are the scales of columns and rows, u = d x c."""

    def norms(self, x: torch.Tensor) -> torch.Tensor:
        """(B, m) of the rows of x (B, m, n)."""

    def order(self, live: torch.Tensor) -> Any:
        """What `squares` takes of the rows that are not masked."""

    def squares(
        self, x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, order: Any,
        eps: float, row_step: bool, backwards: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
        """(sums (B, S, n), d): of u^2 over parts of the rows, behind a row step if the pass has one."""

    def columns(self, sums: torch.Tensor, c: torch.Tensor, eps: float) -> None:
        """A column step: c is divided by the norms."""

    def finish(
        self, x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: torch.Tensor,
        eps: float, row_step: bool, factor: float,
    ) -> None:  # fmt: skip
        """out = u times factor, behind a last row step if there is one."""


def balance(
    x: torch.Tensor, out: torch.Tensor, options: BalanceOptions, groups: Sequence[str], passes: Passes
) -> None:
    """Write x (B, m, n), balanced, to out, which may be x.

    A row step needs no pass of its own: it rides with the squares of the column step behind it, or with the
    last pass, which writes.

    Args:
        groups: names of the process groups over which the rows are sharded.
    """
    kind = computing(x.dtype)
    c, d = x.new_ones((x.size(0), x.size(2)), dtype=kind), x.new_ones(x.shape[:2], dtype=kind)
    order = None
    if options.zero_row_threshold > 0:
        live = ~_is_masked(passes.norms(x), options.zero_row_threshold, groups)
        d, order = live.to(kind), passes.order(live)
    row_step = False
    for k in range(options.steps):
        if (k % 2 == 0) == (options.first == "rows"):
            row_step = True
            continue
        sums, d = passes.squares(x, c, d, order, options.eps, row_step, k % 4 > 1)
        if groups:
            eager.columns(_over_ranks(sums.sum(1, keepdim=True), groups), c, options.eps)
        else:
            passes.columns(sums, c, options.eps)
        row_step = False
    factor = math.sqrt(x.size(2)) if options.scale == "row_rms" else 1.0
    passes.finish(x, c, d, out, options.eps, row_step, factor)


def _is_masked(norms: torch.Tensor, threshold: float, groups: Sequence[str]) -> torch.Tensor:
    """Whether a row's norm (B, m) is at most the threshold times the mean of its matrix, over all ranks."""
    if not groups:
        return norms <= threshold * norms.mean(1, keepdim=True)
    rows = norms.new_full((len(norms),), norms.size(1))
    total, rows = _over_ranks(torch.stack([norms.sum(1), rows]), groups)
    return norms <= threshold * (total / rows).unsqueeze(1)


def _over_ranks(t: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
    """t added over all ranks of these groups."""
    import torch.distributed as dist

    for name in groups:
        dist.all_reduce(t, group=dist.distributed_c10d._resolve_process_group(name))
    return t
