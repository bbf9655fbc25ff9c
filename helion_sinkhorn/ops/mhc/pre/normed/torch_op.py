"""The torch operators of hc_pre with a norm.

`helion_sinkhorn::hc_pre_normed` returns u, and its backward (dx in `dtype`, dpre, dweight), with an empty
tensor for each that is not `wanted`; dweight is a sum over tokens in the computing dtype.  Both take any
leading shape; `implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

from helion_sinkhorn.ops.mhc.pre.normed import eager
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.wanted import cast, filled, only

FORWARD, BACKWARD, PUBLIC = "hc_pre_normed", "hc_pre_normed_backward", "hc_pre"
ARGUMENTS = "Tensor x, Tensor pre, Tensor norm_weight, float norm_eps, str implementation"
implementations = Implementations("helion_sinkhorn.ops.mhc.pre.normed.launch", eager)


def forward(x, pre, weight, eps, implementation):
    """u; see api.hc_pre."""
    with implementations.chosen_for(x, implementation) as module:
        return module.forward(x, pre, weight, eps)


def backward(du, x, pre, weight, eps, implementation, dtype, wanted):
    """(dx, dpre, dweight)."""
    with implementations.chosen_for(x, implementation) as module:
        return filled(module.backward(du, x, pre, weight, eps, dtype, wanted), (x, pre, weight))


def _empty_result(x, pre, *arguments):
    return x.new_empty(*x.shape[:-2], x.size(-1))


def _empty_gradients(du, x, pre, weight, eps, implementation, dtype, wanted):
    of_weight = weight.new_empty(weight.shape, dtype=COMPUTING[x.dtype])
    made = x.new_empty(x.shape, dtype=dtype), pre.new_empty(pre.shape), of_weight
    return filled(only(made, wanted), (x, pre, weight))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.arguments = inputs[3:]
    ctx.set_materialize_grads(False)


def _gradient(ctx, du):
    if du is None:
        return (None,) * 5
    x, pre, weight = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    gradients = apply_backward(du, x, pre, weight, *ctx.arguments, x.dtype, wanted)
    dx, dpre, dweight = only(gradients, wanted)
    return dx, dpre, cast(dweight, weight), None, None


call = define(FORWARD, f"({ARGUMENTS}) -> Tensor", forward, _empty_result, 3)
call_backward = define(
    BACKWARD,
    f"(Tensor du, {ARGUMENTS}, ScalarType dtype, bool[] wanted) -> (Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 4,
)  # fmt: skip
apply = differentiable(FORWARD, PUBLIC, call, _keep, _gradient)
apply_backward = last(BACKWARD, PUBLIC, call_backward)
roles(FORWARD, "ttp -> t", _empty_result, before(2))
roles(BACKWARD, "tttp -> tt+", _empty_gradients, before(1))
