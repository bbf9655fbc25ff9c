"""The steps of sinkhorn_balance as passes over the matrix: `eager` has them in PyTorch, `launch.LAUNCHES` by
kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.balance import eager
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.runtime.groups import reduce_over
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.views import placed


class Scales(NamedTuple):
    """The scales of the iterate d x c, before a last row step if it is still to come."""

    c: torch.Tensor
    """(B, n), the scales of the columns."""
    d: torch.Tensor
    """(B, m), the scales of the rows; 0 where they are masked."""
    row_step: bool


class Average(NamedTuple):
    """How an optimizer averages gradients."""

    momentum: float
    nesterov: bool


def balance(
    x: torch.Tensor, out: torch.Tensor, options: BalanceOptions, groups: Sequence[str], passes: Any
) -> None:
    """Balance x (B, m, n), whose rows are sharded over the groups, and write it to out, which may be x."""
    norms = passes.norms(x) if options.zero_row_threshold > 0 else None
    c, d, row_step = scales(x, norms, options, groups, passes)
    factor = math.sqrt(x.size(2)) if options.scale == "row_rms" else 1.0
    passes.finish(x, c, d, out, options.eps, row_step, factor)


def step(
    weights: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], averages: Sequence[torch.Tensor],
    average: Average, size: torch.Tensor, options: BalanceOptions, groups: Sequence[str], passes: Any,
) -> None:  # fmt: skip
    """A step of an optimizer: w <- w - size u for each w (B, m, n), all of one shape.

    u is the gradient, or its updated average if there are averages, balanced without a factor.
    """
    updates, norms = _updates(gradients, averages, average, options, passes)
    x = updates[0] if len(updates) == 1 else torch.cat(updates)
    c, d, row_step = scales(x, norms, options, groups, passes)
    each = len(weights[0])
    for k, (w, u) in enumerate(zip(weights, updates, strict=True)):
        own = slice(k * each, (k + 1) * each)
        passes.update(u, placed(c[own]), placed(d[own]), w, size, options.eps, row_step)


def _updates(
    gradients: Sequence[torch.Tensor], averages: Sequence[torch.Tensor], average: Average,
    options: BalanceOptions, passes: Any,
) -> tuple[Sequence[torch.Tensor], torch.Tensor | None]:  # fmt: skip
    """(the update to balance, the norms of its rows if they are needed)."""
    if averages:
        ahead = [torch.empty_like(g) if average.nesterov else None for g in gradients]
        given = zip(gradients, averages, ahead, strict=True)
        norms = [passes.momentum(g, a, u, average.momentum) for g, a, u in given]
        return ahead if average.nesterov else averages, torch.cat(norms)
    if options.zero_row_threshold > 0:
        return gradients, torch.cat([passes.norms(g) for g in gradients])
    return gradients, None


def scales(
    x: torch.Tensor, norms: torch.Tensor | None, options: BalanceOptions, groups: Sequence[str], passes: Any
) -> Scales:
    """The scales after all steps except a last row step; a threshold needs the norms (B, m) of the rows.

    A row step needs no pass of its own: the pass for the squares of the next column step, or the last pass,
    which writes, computes it too.
    """
    kind = COMPUTING[x.dtype]
    c, d = x.new_ones((x.size(0), x.size(2)), dtype=kind), x.new_ones(x.shape[:2], dtype=kind)
    order = None
    if options.zero_row_threshold > 0:
        live = ~_is_masked(norms, options.zero_row_threshold, groups)
        d, order = live.to(kind), passes.order(live)
    row_step = False
    for k in range(options.steps):
        if (k % 2 == 0) == (options.first == "rows"):
            row_step = True
            continue
        sums, d = passes.squares(x, c, d, order, options.eps, row_step, k % 4 > 1)
        if groups:
            eager.columns(reduce_over(sums.sum(1, keepdim=True), groups), c, options.eps)
        else:
            passes.columns(sums, c, options.eps)
        row_step = False
    return Scales(c, d, row_step)


def _is_masked(norms: torch.Tensor, threshold: float, groups: Sequence[str]) -> torch.Tensor:
    """Whether a row's norm (B, m) is at most the threshold times the mean of its matrix, over all ranks."""
    if not groups:
        return norms <= threshold * norms.mean(1, keepdim=True)
    rows = norms.new_full((len(norms),), norms.size(1))
    total, rows = reduce_over(torch.stack([norms.sum(1), rows]), groups)
    return norms <= threshold * (total / rows).unsqueeze(1)
