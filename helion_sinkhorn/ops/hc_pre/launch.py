"""From tensors to launches of hc_pre: views, the choice of configs."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.hc_pre.space import (
    PreCall,
    backward_default,
    backward_space,
    forward_default,
    forward_space,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import Asked, Served, launch_kept, layout_key, run_and_keep, serve
from helion_sinkhorn.runtime.space import power_of_two
from helion_sinkhorn.runtime.views import flattened

FORWARD, BACKWARD = "hc_pre_forward", "hc_pre_backward"
BODIES = "helion_sinkhorn.ops.hc_pre.kernels"
KERNELS = {
    FORWARD: Kernel(FORWARD, f"{BODIES}:{FORWARD}", PreCall, forward_default, forward_space),
    BACKWARD: Kernel(BACKWARD, f"{BODIES}:{BACKWARD}", PreCall, backward_default, backward_space),
}


@functools.lru_cache(maxsize=4096)
def call_for(n: int, columns: int, dtype: torch.dtype) -> PreCall:
    """What the configs of a call are chosen for."""
    return PreCall(str(dtype)[6:], n, columns)


def forward(x: torch.Tensor, pre: torch.Tensor, choice: Choice | None = None) -> torch.Tensor:
    """y (..., C); the contract is api.hc_pre's."""
    n, columns = x.shape[-2:]
    y = torch.empty((*x.shape[:-2], columns), dtype=x.dtype, device=x.device)
    x, pre, out = flattened(x, 2), flattened(pre, 1), y.view(-1, columns)
    tensors = x, pre, out
    key = FORWARD, layout_key(*tensors), choice
    if launch_kept(key, *tensors):
        return y

    def launch(served: Served) -> None:
        run_and_keep(served.kernel, tensors, (n, columns, served.reciprocal), tensors, key)

    serve(KERNELS, FORWARD, call_for(n, columns, x.dtype), x.size(0), x, launch, choice)
    return y


def backward(
    dy: torch.Tensor, x: torch.Tensor, pre: torch.Tensor, choice: Choice | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx, dpre)."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    asked = Asked(KERNELS, BACKWARD, call_for(*x.shape[-2:], x.dtype))
    return dx, gradients(dy, x, pre, dx.view(-1, *x.shape[-2:]), asked, choice)


def gradients(
    dy: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    dx: torch.Tensor | None,
    asked: Asked,
    choice: Choice | None = None,
) -> torch.Tensor:
    """dpre; dx (T, n, C) is written where it is given."""
    n, columns = x.shape[-2:]
    dpre = torch.empty(pre.shape, dtype=pre.dtype, device=pre.device)
    tensors = flattened(dy, 1), flattened(x, 2), flattened(pre, 1), dx, dpre.view(-1, n)
    key = asked.name, layout_key(*tensors), choice
    if launch_kept(key, *tensors):
        return dpre

    def launch(served: Served) -> None:
        own = n, columns, power_of_two(n), served.reciprocal
        run_and_keep(served.kernel, tensors, own, tensors, key)

    serve(asked.kernels, asked.name, asked.call, len(tensors[1]), x, launch, choice)
    return dpre
