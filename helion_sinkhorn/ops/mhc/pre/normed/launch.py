"""From tensors to launches of hc_pre with a norm: views, the choice of configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.pre.launch import call_for
from helion_sinkhorn.ops.mhc.pre.normed import space
from helion_sinkhorn.ops.mhc.pre.normed.space import SHARES
from helion_sinkhorn.ops.mhc.pre.quantized.launch import beside, form_in_row, write
from helion_sinkhorn.ops.mhc.pre.quantized.layouts import Quantized
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, device_of, launch
from helion_sinkhorn.runtime.views import flattened, flattened_streams, parameter
from helion_sinkhorn.runtime.wanted import Some, room_for

FORWARD, BACKWARD = "hc_pre_normed_forward", "hc_pre_normed_backward"
BODIES = "helion_sinkhorn.ops.mhc.pre.normed.kernels"


def facts(chosen: Chosen, call: PreCall, *values: Any) -> tuple[Any, ...]:
    """What a body takes after its tensors; the backward's body takes its number of shares before."""
    *numbers, eps = values
    return *numbers, call.n, call.columns, eps, chosen.reciprocal


def forward_facts(chosen: Chosen, call: PreCall, *values: Any) -> tuple[Any, ...]:
    *values, kind = values
    return *facts(chosen, call, *values), form_in_row(chosen, call.columns, kind)


KERNELS = {
    name: Kernel(
        name,
        f"{BODIES}:{name}",
        PreCall,
        *own,
        traits=frozenset({"norms", *traits}),
        numbers=numbers,
    )
    # own: the default, the space and the facts
    for name, traits, numbers, *own in (
        (FORWARD, (), 1, space.forward_default, space.forward_space, forward_facts),
        (BACKWARD, ("optional results",), 1, space.backward_default, space.backward_space, facts),
    )
}


def forward(
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    choice: Choice | None = None,
    into: Some = None,
    quantized: Quantized | None = None,
) -> torch.Tensor:
    """u (..., C), or `into`; the contract is api.hc_pre's.  u is rounded into `quantized`, if it is given."""
    u = room(into, x, (*x.shape[:-2], x.size(-1)), x.dtype)
    launch_forward(flattened_streams(x), flattened(pre, 1), weight, eps, u, quantized, choice)
    return u


def normalise(y: torch.Tensor, weight: torch.Tensor, eps: float, quantized: Quantized | None = None) -> None:
    """Write the norm of y (..., C) over it, and round it into `quantized`, if it is given."""
    launch_forward(y.view(-1, 1, y.size(-1)), None, weight, eps, y, quantized)


def launch_forward(
    x: torch.Tensor,
    pre: Some,
    weight: torch.Tensor,
    eps: float,
    u: torch.Tensor,
    quantized: Quantized | None,
    choice: Choice | None = None,
) -> None:
    """One launch for x (T, n, C), and on AMD one more that rounds u.

    There Triton's barrier does not wait for stores to global memory, as a program does that reads its row.
    """
    tokens, n, columns = x.shape
    apart = quantized is not None and device_of(x).vendor != "nvidia"
    kind, neighbours, operands = beside(u, None if apart else quantized)
    tensors = x, pre, parameter(weight), u.view(tokens, columns), *operands
    call = call_for(n, columns, x.dtype)
    launch(KERNELS[FORWARD], call, tensors, neighbours, eps, kind, batch=tokens, choice=choice)
    if apart:
        write(u, quantized)


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
