"""A step of weights along balanced gradients: this rank's part of it, and its implementation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.ops.balance import torch_op
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average
from helion_sinkhorn.ops.balance.space import LARGEST_N
from helion_sinkhorn.runtime.checks import implementation_for
from helion_sinkhorn.runtime.torch_op import may_be_distributed


def step(
    weights: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    averages: Sequence[torch.Tensor],
    average: Average,
    size: torch.Tensor,
    options: BalanceOptions,
) -> None:
    """w <- w - size u for each w (..., m, n); u is its gradient, balanced by rows first without a factor.

    With averages, u is the balanced average, which is updated first.

    Args:
        weights: tensors of one shape, dtype and device, or a single DTensor, whose rows may be sharded.
        gradients: one for each weight, in its dtype.
        averages: one for each weight, in its dtype, or none.
        size: (1,), in the computing dtype, on the device of the weights.

    Raises:
        ValueError: the columns of a DTensor are sharded.
        TypeError: a weight is a DTensor and its gradient is not, or the other way round.
    """
    groups: list[str] = []
    if may_be_distributed(*weights, *gradients):
        from helion_sinkhorn.ops.balance.distributed import local

        (w,), (g,) = weights, gradients
        g, w, groups = local(g, w, groups)
        weights, gradients = [w], [g]
        averages = [local(a, None, [])[0] for a in averages]
    w = weights[0]
    within = 2 <= w.size(-1) <= LARGEST_N
    how = implementation_for("auto", "a parameter", w, None if within else str)
    given = list(weights), list(gradients), list(averages), size
    settings = options.steps, options.zero_row_threshold, options.eps
    torch_op.call_step(*given, *average, *settings, groups, how)
