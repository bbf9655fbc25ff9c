"""From tensors to the two launches of hc_last with a head: views, the choice of configs."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.mhc.mixes.launch import Partials
from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.site.boundary.head import space
from helion_sinkhorn.ops.mhc.site.boundary.last.launch import of_update
from helion_sinkhorn.ops.mhc.site.boundary.space import WIDTH, chunk_of
from helion_sinkhorn.ops.mhc.site.launch import call_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, launch
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.views import parameter
from helion_sinkhorn.runtime.wanted import Some

SUMS, HEAD = "hc_boundary_head_sums", "hc_boundary_head"
BODIES = "helion_sinkhorn.ops.mhc.site.boundary.head.kernels"


def splits_of(call: SiteCall) -> int:
    """Chunks of columns: as hc_boundary has them, so that a token's bits do not depend on the others."""
    return -(-call.columns // chunk_of(call))


def sums_facts(chosen: Chosen, call: SiteCall, comb_order: str) -> tuple[Any, ...]:
    of = space.projection_of(call)
    return (
        call.n, call.columns, splits_of(call), chunk_of(call), WIDTH,
        of.block_m, of.x_parts, of.parts, comb_order == "oi", chosen.reciprocal, chosen.interpret,
    )  # fmt: skip


def head_facts(chosen: Chosen, call: SiteCall, comb_order: str, *eps: float) -> tuple[Any, ...]:
    return call.n, call.columns, splits_of(call), comb_order == "oi", *eps, chosen.reciprocal


KERNELS = {
    SUMS: Kernel(
        SUMS, f"{BODIES}:{SUMS}", SiteCall, space.sums_default, space.sums_space, sums_facts,
        traits=frozenset({"splits", "overlaps"}),
    ),
    HEAD: Kernel(
        HEAD, f"{BODIES}:{HEAD}", SiteCall, space.head_default, space.head_space, head_facts,
        traits=frozenset({"norms", "overlaps"}),
    ),
}  # fmt: skip


def sums(
    update: Update, fn: torch.Tensor, call: SiteCall, comb_order: str, choices: Choices = NO_CHOICES
) -> Partials:
    """Partial sums of the projection by fn (n, n C) of the new streams, flattened to tokens."""
    tokens = len(update.x)
    products = fn.new_empty((tokens, splits_of(call), call.n), dtype=torch.float32)
    made = Partials(products, products.new_empty(products.shape[:2]))
    tensors = *update, parameter(fn).view(call.n, call.n, call.columns), *made
    launch(KERNELS[SUMS], call, tensors, comb_order, batch=tokens, choice=choices.get(SUMS))
    return made


def collapsed(
    update: Update,
    made: Partials,
    parameters: tuple[torch.Tensor, torch.Tensor, Some],
    y: torch.Tensor,
    call: SiteCall,
    comb_order: str,
    *eps: float,
    choices: Choices = NO_CHOICES,
) -> None:
    """Write y (T, C) of a flattened update and its partial sums.

    The parameters are scale, base and the weight of y's norm, eps those of `forward`.
    """
    scale, base, norm_weight = parameters
    weight = None if norm_weight is None else parameter(norm_weight)
    tensors = *update, *made, parameter(scale), parameter(base).view(1, call.n), weight, y
    launch(KERNELS[HEAD], call, tensors, comb_order, *eps, batch=len(y), choice=choices.get(HEAD))


def forward(
    update: Update,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    norm_weight: Some,
    comb_order: str,
    *eps: float,
    choices: Choices = NO_CHOICES,
    out: Some = None,
) -> torch.Tensor:
    """y (..., C), or `out`; the contract is mhc.last.hc_last's.

    The norm_weight of the head is in fn; eps are those of the head's norm, of its weights and of y's norm.
    """
    x = update.x
    n, columns = x.shape[-2:]
    y = room(out, x, (*x.shape[:-2], columns), x.dtype)
    update, call = of_update(update), call_for(n, columns, x.dtype, "float32")
    made = sums(update, fn, call, comb_order, choices)
    rows = y.view(-1, columns)
    parameters = scale, base, norm_weight
    collapsed(update, made, parameters, rows, call, comb_order, *eps, choices=choices)
    return y
