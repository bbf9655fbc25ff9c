"""The torch operators of hc_post.

`helion_sinkhorn::hc_post` returns the new streams, its backward (df, dx, dpost, dcomb); both take any leading
shape; `implementation` is "helion" or "pytorch".  The gradient of the bias is a sum of df, made here.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.post import eager
from helion_sinkhorn.runtime.pieces import computing
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import (
    define,
    differentiable,
    differentiates,
    last,
    on_device,
    without_autocast,
)

FORWARD, BACKWARD = "hc_post", "hc_post_backward"
ARGUMENTS = "Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, str comb_order, str implementation"


@functools.cache
def _launch():
    """The launcher, imported by the first call that needs it."""
    from helion_sinkhorn.ops.mhc.post import launch

    return launch


def forward(f, x, *rest):
    """The new streams; see api.hc_post."""
    *rest, implementation = rest
    if implementation == "pytorch" or x.numel() == 0:
        with without_autocast(x):
            return eager.forward(f, x, *rest)
    with on_device(x):
        return _launch().forward(f, x, *rest)


def backward(grad, f, x, *rest):
    """(df, dx, dpost, dcomb)."""
    *rest, implementation = rest
    if implementation == "pytorch" or x.numel() == 0:
        with without_autocast(x):
            return eager.backward(grad, f, x, *rest)
    with on_device(x):
        return _launch().backward(grad, f, x, *rest)


def _empty_result(f, x, *rest):
    return x.new_empty(x.shape)


def _empty_gradients(grad, *arguments):
    return tuple(t.new_empty(t.shape) for t in arguments[:4])


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.arguments = inputs[5:]
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad):
    if grad is None:
        return (None,) * 7
    f, x, post, comb, bias = ctx.saved_tensors
    run = HcPostBackward.apply if differentiates(grad, f, x, post, comb) else call_backward
    wanted = bias is not None and ctx.needs_input_grad[4]
    # df has the dtype of f: in the computing one the bias's gradient is summed before anything is rounded
    given = f.to(computing(x.dtype)) if wanted else f
    df, *others = run(grad, given, x, post, comb, bias, *ctx.arguments)
    dbias = gradient_of_bias(df).to(bias.dtype) if wanted else None
    return df.to(f.dtype), *others, dbias, None, None


def gradient_of_bias(df: torch.Tensor) -> torch.Tensor:
    """The sum of df over all tokens; not of its rows as a matrix, which uneven shards cannot be."""
    tokens = tuple(range(df.dim() - 1))
    return df.sum(tokens) if tokens else df


call = define(FORWARD, f"({ARGUMENTS}) -> Tensor", forward, _empty_result, 5)
call_backward = define(
    BACKWARD, f"(Tensor grad, {ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)", backward, _empty_gradients, 6
)
HcPost = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
HcPostBackward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "ttttp -> t", _empty_result, before(1))
roles(BACKWARD, "tttttp -> tttt", _empty_gradients, before(2))
