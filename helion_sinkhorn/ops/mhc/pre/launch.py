"""From tensors to launches of hc_pre: views, the choice of configs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.out import room
from helion_sinkhorn.ops.mhc.pre import space
from helion_sinkhorn.ops.mhc.pre.space import PreCall
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import Chosen, launch
from helion_sinkhorn.runtime.space import power_of_two
from helion_sinkhorn.runtime.views import flattened, flattened_streams
from helion_sinkhorn.runtime.wanted import Some, room_for

FORWARD, BACKWARD = "hc_pre_forward", "hc_pre_backward"
BODIES = "helion_sinkhorn.ops.mhc.pre.kernels"


def forward_facts(chosen: Chosen, call: PreCall) -> tuple[Any, ...]:
    return call.n, call.columns, chosen.reciprocal


def backward_facts(chosen: Chosen, call: Any) -> tuple[Any, ...]:
    """What the backward's body takes after its tensors, for a call with n and columns."""
    return call.n, call.columns, power_of_two(call.n), chosen.reciprocal


KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", PreCall, *own)
    for name, *own in (
        (FORWARD, space.forward_default, space.forward_space, forward_facts),
        (BACKWARD, space.backward_default, space.backward_space, backward_facts),
    )
}


@functools.lru_cache(maxsize=4096)
def call_for(n: int, columns: int, dtype: torch.dtype) -> PreCall:
    """What the configs of a call are chosen for."""
    return PreCall(str(dtype)[6:], n, columns)


def forward(
    x: torch.Tensor, pre: torch.Tensor, choice: Choice | None = None, into: Some = None
) -> torch.Tensor:
    """y (..., C), or `into`; the contract is api.hc_pre's."""
    n, columns = x.shape[-2:]
    y = room(into, x, (*x.shape[:-2], columns), x.dtype)
    x, pre, out = flattened_streams(x), flattened(pre, 1), y.view(-1, columns)
    call = call_for(n, columns, x.dtype)
    launch(KERNELS[FORWARD], call, (x, pre, out), batch=len(x), choice=choice)
    return y


def backward(
    dy: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    wanted: Sequence[bool] = (True, True),
    choice: Choice | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(dx, dpre), None for each that is not wanted."""
    made = room_for((x, pre), wanted)
    gradients(dy, x, pre, made, KERNELS[BACKWARD], call_for(*x.shape[-2:], x.dtype), choice)
    return made


def gradients(
    dy: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    made: Sequence[torch.Tensor | None],
    kernel: Kernel,
    call: Any,
    choice: Choice | None = None,
) -> None:
    """Write those of dx and dpre that are given, by a kernel with the body of BACKWARD."""
    dy, x, pre = flattened(dy, 1), flattened(x, 2), flattened(pre, 1)
    rows = (None if t is None else t.view(like.shape) for t, like in zip(made, (x, pre), strict=True))
    launch(kernel, call, (dy, x, pre, *rows), batch=len(x), choice=choice)
