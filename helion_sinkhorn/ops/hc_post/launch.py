"""From tensors to launches of hc_post: views, the choice of configs."""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.hc_post.space import (
    PostCall,
    backward_default,
    backward_space,
    forward_default,
    forward_space,
)
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.serving import Served, launch_kept, layout_key, run_and_keep, serve
from helion_sinkhorn.runtime.views import flattened, in_pieces

FORWARD, BACKWARD = "hc_post_forward", "hc_post_backward"
BODIES = "helion_sinkhorn.ops.hc_post.kernels"
KERNELS = {
    FORWARD: Kernel(FORWARD, f"{BODIES}:{FORWARD}", PostCall, forward_default, forward_space),
    BACKWARD: Kernel(BACKWARD, f"{BODIES}:{BACKWARD}", PostCall, backward_default, backward_space),
}


@functools.lru_cache(maxsize=4096)
def call_for(n: int, columns: int, dtype: torch.dtype) -> PostCall:
    """What the configs of a call are chosen for."""
    return PostCall(str(dtype)[6:], n, columns)


def forward(
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    comb_order: str,
    choice: Choice | None = None,
) -> torch.Tensor:
    """The new streams (..., n, C); the contract is api.hc_post's."""
    n, columns = x.shape[-2:]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    f, x, post, comb = flattened(f, 1), flattened(x, 2), flattened(post, 1), flattened(comb, 2)
    tensors = f, x, post, comb, bias, out.view(-1, n, columns)
    key = FORWARD, layout_key(*tensors), comb_order, choice
    if launch_kept(key, *tensors):
        return out

    def launch(served: Served) -> None:
        own = n, columns, comb_order == "oi", served.reciprocal
        run_and_keep(served.kernel, tensors, own, tensors, key)

    serve(KERNELS, FORWARD, call_for(n, columns, x.dtype), x.size(0), x, launch, choice)
    return out


def backward(
    grad: torch.Tensor,
    f: torch.Tensor,
    x: torch.Tensor,
    post: torch.Tensor,
    comb: torch.Tensor,
    bias: torch.Tensor | None,
    comb_order: str,
    choice: Choice | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(df, dx, dpost, dcomb)."""
    n, columns = x.shape[-2:]
    made = tuple(torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (f, x, post, comb))
    tensors = (
        flattened(grad, 2), flattened(f, 1), flattened(x, 2), flattened(post, 1), flattened(comb, 2), bias,
        *(t.view(-1, *t.shape[t.dim() - kept :]) for t, kept in zip(made, (1, 2, 1, 2), strict=True)),
    )  # fmt: skip
    key = BACKWARD, layout_key(*tensors), comb_order, choice
    if launch_kept(key, *tensors):
        return made
    call = call_for(n, columns, x.dtype)

    def launch(served: Served) -> None:
        # gates, matrices and their gradients have no columns
        views = tuple(
            t if t is None or k in (3, 4, 8, 9) else in_pieces(t, call.run) for k, t in enumerate(tensors)
        )
        own = n, call.served, -(-n // call.served), comb_order == "oi", served.reciprocal
        run_and_keep(served.kernel, views, own, tensors, key)

    serve(KERNELS, BACKWARD, call, tensors[2].size(0), x, launch, choice)
    return made
