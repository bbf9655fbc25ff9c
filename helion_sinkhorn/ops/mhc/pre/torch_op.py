"""The torch operators of hc_pre.

`helion_sinkhorn::hc_pre` returns y, and its backward (dx, dpre), with an empty tensor for each that is not
`wanted`.  Both take any leading shape; `implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

from helion_sinkhorn.ops.mhc.pre import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.wanted import filled, only

FORWARD, BACKWARD = "hc_pre", "hc_pre_backward"
implementations = Implementations("helion_sinkhorn.ops.mhc.pre.launch", eager)


def forward(x, pre, implementation, **into):
    """y; see api.hc_pre."""
    with implementations.chosen_for(x, implementation) as module:
        return module.forward(x, pre) if module is eager else module.forward(x, pre, **into)


def backward(dy, x, pre, implementation, wanted):
    """(dx, dpre)."""
    with implementations.chosen_for(x, implementation) as module:
        return filled(module.backward(dy, x, pre, wanted), (x, pre))


def _empty_result(x, pre, implementation):
    return x.new_empty(*x.shape[:-2], x.size(-1))


def _empty_gradients(dy, x, pre, implementation, wanted):
    return filled(only((x.new_empty(x.shape), pre.new_empty(pre.shape)), wanted), (x, pre))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.implementation = inputs[2]
    ctx.set_materialize_grads(False)


def _gradient(ctx, dy):
    if dy is None:
        return None, None, None
    x, pre = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:2]
    return *only(apply_backward(dy, x, pre, ctx.implementation, wanted), wanted), None


call = define(FORWARD, "(Tensor x, Tensor pre, str implementation) -> Tensor", forward, _empty_result, 2)
call_backward = define(
    BACKWARD,
    "(Tensor dy, Tensor x, Tensor pre, str implementation, bool[] wanted) -> (Tensor, Tensor)",
    backward, _empty_gradients, 3,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_backward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "tt -> t", _empty_result, before(2))
roles(BACKWARD, "ttt -> tt", _empty_gradients, before(1))
