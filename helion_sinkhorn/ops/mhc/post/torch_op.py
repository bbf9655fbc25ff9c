"""The torch operators of hc_post.

`helion_sinkhorn::hc_post` returns the new streams, and its backward (df, dx, dpost, dcomb), with an empty
tensor for each that is not `wanted`.  Both take any leading shape; `implementation` is "helion" or "pytorch".
The gradient of the bias is the sum of df, which is computed here.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.post import eager
from helion_sinkhorn.runtime import own_gradient
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.wanted import filled, only

FORWARD, BACKWARD = "hc_post", "hc_post_backward"
ARGUMENTS = "Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, str comb_order, str implementation"
implementations = Implementations("helion_sinkhorn.ops.mhc.post.launch", eager)


def forward(f, x, post, comb, bias, comb_order, implementation, **out):
    """The new streams; see api.hc_post."""
    given = Update(f, x, post, comb, bias), comb_order
    with implementations.chosen_for(x, implementation) as module:
        # kernels write into `out`
        return module.forward(*given) if module is eager else module.forward(*given, **out)


def backward(grad, f, x, *rest):
    """(df, dx, dpost, dcomb)."""
    post, comb, bias, comb_order, implementation, wanted = rest
    update = Update(f, x, post, comb, bias)
    with implementations.chosen_for(x, implementation) as module:
        return filled(module.backward(grad, update, comb_order, wanted), update[:4])


def _empty_result(f, x, *rest):
    return x.new_empty(x.shape)


def _empty_gradients(grad, *arguments):
    given = arguments[:4]
    return filled(only([t.new_empty(t.shape) for t in given], arguments[-1]), given)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.arguments = inputs[5:]
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad):
    if grad is None:
        return (None,) * 7
    f, x, post, comb, bias = ctx.saved_tensors
    wanted, given = with_bias(ctx.needs_input_grad, f, x)
    gradients = taken_back(grad, given, x, post, comb, bias, *ctx.arguments, wanted)
    own_gradient.note(gradients[1] if wanted[1] else None)
    return *of_update(gradients, ctx.needs_input_grad, f, bias), None, None


def taken_back(grad, f, x, post, comb, bias, *arguments):
    """The gradients of an update; none depends on the bias, so a bias alone asks for no second derivative."""
    return apply_backward(grad, f, x, post, comb, None if bias is None else bias.detach(), *arguments)


def with_bias(needed, f, x):
    """(which of (df, dx, dpost, dcomb) are wanted, f for their operator), from what needs a gradient.

    df has the dtype of f.  If the bias needs a gradient, f is converted to the computing dtype, so that df is
    summed before it is rounded.
    """
    of_bias = needed[4]
    return (needed[0] or of_bias, *needed[1:4]), f.to(COMPUTING[x.dtype]) if of_bias else f


def of_update(gradients, needed, f, bias):
    """(df, dx, dpost, dcomb, dbias) from what `with_bias` asks for, None for those that are not needed."""
    df, *others = gradients
    dbias = gradient_of_bias(df).to(bias.dtype) if needed[4] else None
    return df.to(f.dtype) if needed[0] else None, *only(others, needed[1:4]), dbias


def gradient_of_bias(df: torch.Tensor) -> torch.Tensor:
    """The sum of df over all tokens, without a view as a matrix, which uneven shards do not have."""
    tokens = tuple(range(df.dim() - 1))
    return df.sum(tokens) if tokens else df


call = define(FORWARD, f"({ARGUMENTS}) -> Tensor", forward, _empty_result, 5)
call_backward = define(
    BACKWARD,
    f"(Tensor grad, {ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 6,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_backward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "ttttp -> t", _empty_result, before(1))
roles(BACKWARD, "tttttp -> tttt", _empty_gradients, before(2))
