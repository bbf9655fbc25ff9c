"""From tensors to the launch of hc_last: views, the choice of configs."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.site.boundary.last.space import default, space
from helion_sinkhorn.ops.mhc.site.launch import call_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, launch
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.views import flattened, flattened_streams, parameter, placed
from helion_sinkhorn.runtime.wanted import Some

LAST = "hc_boundary_last"


def facts(chosen: Chosen, call: SiteCall, comb_order: str, eps: float) -> tuple[Any, ...]:
    return call.n, call.columns, comb_order == "oi", eps, chosen.reciprocal


KERNEL = Kernel(
    LAST, f"helion_sinkhorn.ops.mhc.site.boundary.last.kernels:{LAST}", SiteCall, default, space, facts,
    traits=frozenset({"norms", "overlaps"}),
)  # fmt: skip


def of_update(update: Update) -> Update:
    """The tensors of an update with their tokens in one dimension."""
    f, x, post, comb, bias = update
    bias = None if bias is None else placed(bias)
    return Update(flattened(f, 1), flattened_streams(x), flattened(post, 1), flattened(comb, 2), bias)


def forward(
    update: Update,
    weights: torch.Tensor,
    norm_weight: Some,
    norm_eps: float,
    comb_order: str,
    choice: Choice | None = None,
    out: Some = None,
) -> torch.Tensor:
    """y (..., C), or `out`; the contract is mhc.last.hc_last's."""
    x = update.x
    n, columns = x.shape[-2:]
    y = room(out, x, (*x.shape[:-2], columns), x.dtype)
    norm_weight = None if norm_weight is None else parameter(norm_weight)
    tensors = *of_update(update), flattened(weights, 1), norm_weight, y.view(-1, columns)
    call = call_for(n, columns, x.dtype, "float32")
    launch(KERNEL, call, tensors, comb_order, norm_eps, batch=len(tensors[0]), choice=choice)
    return y
