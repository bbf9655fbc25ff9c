"""The torch operators of Sinkhorn.

`helion_sinkhorn::sinkhorn` and `helion_sinkhorn::sinkhorn_backward` take any leading shape;
`implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last

FORWARD, BACKWARD = "sinkhorn", "sinkhorn_backward"
ARGUMENTS = "int n_iters, float eps, str form, str first, str implementation"
implementations = Implementations("helion_sinkhorn.ops.sinkhorn.launch")


def forward(logits, n_iters, eps, form, first, implementation, out_dtype):
    """P; see api.sinkhorn."""
    if implementation == "pytorch":
        return eager.forward(logits, n_iters, eps, form, first, out_dtype)
    with implementations.launching(logits) as launch:
        return launch.forward(logits, n_iters, eps, form, first, out_dtype)


def backward(grad, logits, n_iters, eps, form, first, implementation):
    """dX of the iterations that `forward` ran, which are computed again from the logits."""
    if implementation == "pytorch":
        return eager.backward(grad, logits, n_iters, eps, form, first)
    with implementations.launching(logits) as launch:
        return launch.backward(grad, logits, n_iters, eps, form, first)


def empty_p(logits, n_iters, eps, form, first, implementation, out_dtype, *options):
    """An uninitialised P."""
    return torch.empty(logits.shape, dtype=out_dtype, device=logits.device)


def _empty_dx(grad, logits, *arguments):
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _keep_logits(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.arguments = inputs[1:6]


def _gradient(ctx, grad):
    (logits,) = ctx.saved_tensors
    return apply_backward(grad, logits, *ctx.arguments), *[None] * 6


call = define(FORWARD, f"(Tensor logits, {ARGUMENTS}, ScalarType out_dtype) -> Tensor", forward, empty_p, 1)
call_backward = define(
    BACKWARD, f"(Tensor grad, Tensor logits, {ARGUMENTS}) -> Tensor", backward, _empty_dx, 2
)
apply = differentiable(FORWARD, "sinkhorn", call, _keep_logits, _gradient)
apply_backward = last(BACKWARD, "sinkhorn", call_backward)
roles(FORWARD, "t -> t", empty_p, before(2))
roles(BACKWARD, "tt -> t", _empty_dx, before(2))
