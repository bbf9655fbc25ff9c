"""The torch operators of hc_pre.

`helion_sinkhorn::hc_pre` returns y, its backward (dx, dpre); both take any leading shape; `implementation` is
"helion" or "pytorch".
"""

from __future__ import annotations

import functools

from helion_sinkhorn.ops.mhc.pre import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import (
    define,
    differentiable,
    differentiates,
    last,
    on_device,
    without_autocast,
)

FORWARD, BACKWARD = "hc_pre", "hc_pre_backward"


@functools.cache
def _launch():
    """The launcher, imported by the first call that needs it."""
    from helion_sinkhorn.ops.mhc.pre import launch

    return launch


def forward(x, pre, implementation):
    """y; see api.hc_pre."""
    if implementation == "pytorch" or x.numel() == 0:
        with without_autocast(x):
            return eager.forward(x, pre)
    with on_device(x):
        return _launch().forward(x, pre)


def backward(dy, x, pre, implementation):
    """(dx, dpre)."""
    if implementation == "pytorch" or x.numel() == 0:
        with without_autocast(x):
            return eager.backward(dy, x, pre)
    with on_device(x):
        return _launch().backward(dy, x, pre)


def _empty_result(x, pre, implementation):
    return x.new_empty(*x.shape[:-2], x.size(-1))


def _empty_gradients(dy, x, pre, implementation):
    return x.new_empty(x.shape), pre.new_empty(pre.shape)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.implementation = inputs[2]
    ctx.set_materialize_grads(False)


def _gradient(ctx, dy):
    if dy is None:
        return None, None, None
    x, pre = ctx.saved_tensors
    run = HcPreBackward.apply if differentiates(dy, x, pre) else call_backward
    return *run(dy, x, pre, ctx.implementation), None


call = define(FORWARD, "(Tensor x, Tensor pre, str implementation) -> Tensor", forward, _empty_result, 2)
call_backward = define(
    BACKWARD,
    "(Tensor dy, Tensor x, Tensor pre, str implementation) -> (Tensor, Tensor)",
    backward, _empty_gradients, 3,
)  # fmt: skip
HcPre = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
HcPreBackward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "tt -> t", _empty_result, before(2))
roles(BACKWARD, "ttt -> tt", _empty_gradients, before(1))
