"""From tensors to launches of hc_pre with a norm: views, the choice of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.pre.launch import call_for
from helion_sinkhorn.ops.mhc.pre.normed import space
from helion_sinkhorn.ops.mhc.pre.normed.space import SHARES
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, launch
from helion_sinkhorn.runtime.views import flattened, flattened_streams, parameter
from helion_sinkhorn.runtime.wanted import Some, room_for

FORWARD, BACKWARD = "hc_pre_normed_forward", "hc_pre_normed_backward"
BODIES = "helion_sinkhorn.ops.mhc.pre.normed.kernels"


def facts(chosen: Chosen, call: PreCall, *values: Any) -> tuple[Any, ...]:
    """What a body takes after its tensors; the backward's body takes its number of shares before."""
    *numbers, eps = values
    return *numbers, call.n, call.columns, eps, chosen.reciprocal


KERNELS = {
    name: Kernel(
        name,
        f"{BODIES}:{name}",
        PreCall,
        *configs,
        facts,
        traits=frozenset({"norms", *traits}),
        numbers=numbers,
    )
    for name, traits, numbers, *configs in (
        (FORWARD, (), 0, space.forward_default, space.forward_space),
        (BACKWARD, ("optional results",), 1, space.backward_default, space.backward_space),
    )
}


def forward(
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    choice: Choice | None = None,
    into: Some = None,
) -> torch.Tensor:
    """u (..., C), or `into`; the contract is api.hc_pre's."""
    n, columns = x.shape[-2:]
    u = room(into, x, (*x.shape[:-2], columns), x.dtype)
    tensors = flattened_streams(x), flattened(pre, 1), parameter(weight), u.view(-1, columns)
    launch(
        KERNELS[FORWARD], call_for(n, columns, x.dtype), tensors, eps, batch=len(tensors[0]), choice=choice
    )
    return u


def normalise(y: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
    """Write the norm of y (..., C) over it."""
    rows = y.view(-1, 1, y.size(-1))
    tensors = rows, None, parameter(weight), rows.squeeze(1)
    launch(KERNELS[FORWARD], call_for(1, y.size(-1), y.dtype), tensors, eps, batch=len(rows))


def backward(
    du: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    dtype: torch.dtype,
    wanted: Sequence[bool] = (True, True, True),
    choice: Choice | None = None,
) -> tuple[Some, Some, Some]:
    """(dx in `dtype`, dpre, dweight in float32), None for each that is not wanted."""
    dx = torch.empty(x.shape, dtype=dtype, device=x.device) if wanted[0] else None
    (dpre,) = room_for((pre,), wanted[1:2])
    return dx, dpre, gradients(du, x, pre, weight, eps, (dx, None, dpre, None), wanted[2], choice)


def gradients(
    du: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    made: Sequence[Some],
    of_weight: bool,
    choice: Choice | None = None,
) -> Some:
    """Write those of dx, dy, dpre and factors that are given; return dweight in float32, if it is wanted."""
    du, x, pre = flattened(du, 1), flattened(x, 2), flattened(pre, 1)
    tokens, n, columns = x.shape
    # the same number for few tokens, where most add up nothing, since another number needs another program
    sums = x.new_empty((SHARES, columns), dtype=torch.float32) if of_weight else None
    *made, factors = made
    rows = (None if t is None else t.view(like.shape) for t, like in zip(made, (x, du, pre), strict=True))
    tensors = du, x, pre, parameter(weight), *rows, factors, sums
    call = call_for(n, columns, x.dtype)
    launch(KERNELS[BACKWARD], call, tensors, SHARES, eps, batch=tokens, choice=choice)
    return None if sums is None else sums.sum(0)
