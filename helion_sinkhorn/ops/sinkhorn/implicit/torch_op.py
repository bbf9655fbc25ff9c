"""The torch operators of backward="implicit": P of `sinkhorn` with the gradient of a fixed point."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn import torch_op as exact
from helion_sinkhorn.ops.sinkhorn.implicit import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last

FORWARD, BACKWARD = "sinkhorn_implicit", "sinkhorn_implicit_backward"
implementations = Implementations("helion_sinkhorn.ops.sinkhorn.implicit.launch")


def forward(logits, n_iters, eps, form, first, implementation, out_dtype, system, solver):
    """P as `sinkhorn` computes it; only the gradient is different."""
    return exact.forward(logits, n_iters, eps, form, first, implementation, out_dtype)


def backward(grad, p, n_iters, implementation, dtype, system, solver):
    """dX at P, as if P were a fixed point."""
    if implementation == "pytorch":
        return eager.backward(grad, p, n_iters, system, solver, dtype)
    with implementations.launching(p) as launch:
        return launch.implicit_backward(grad, p, n_iters, system, solver, dtype)


def _empty_dx(grad, p, n_iters, implementation, dtype, system, solver):
    return torch.empty(p.shape, dtype=dtype, device=p.device)


def _keep_p(ctx, inputs, output):
    logits, n_iters, _, _, _, implementation, _, system, solver = inputs
    ctx.save_for_backward(output)
    ctx.arguments = n_iters, implementation, logits.dtype, system, solver


def _gradient(ctx, grad):
    (p,) = ctx.saved_tensors
    return apply_backward(grad, p, *ctx.arguments), *[None] * 8


call = define(
    FORWARD,
    f"(Tensor logits, {exact.ARGUMENTS}, ScalarType out_dtype, str system, str solver) -> Tensor",
    forward, exact.empty_p, 1,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor grad, Tensor p, int n_iters, str implementation, ScalarType dtype, str system, str solver)"
    " -> Tensor",
    backward, _empty_dx, 2,
)  # fmt: skip
apply = differentiable(FORWARD, "sinkhorn", call, _keep_p, _gradient)
apply_backward = last(BACKWARD, "sinkhorn", call_backward)
roles(FORWARD, "t -> t", exact.empty_p, before(2))
roles(BACKWARD, "tt -> t", _empty_dx, before(2))
