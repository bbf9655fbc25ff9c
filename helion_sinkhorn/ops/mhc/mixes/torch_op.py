"""The torch operators of hc_mixes.

`helion_sinkhorn::hc_mixes` returns (mixes, norms); norms (..., 2) are r and k of `eager.norms_of` and carry
no gradient.  Its backward returns (dx, dfn), dfn a sum over tokens in the computing dtype, and an empty
tensor for each that is not `wanted`.  Both take any leading shape; `implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.mixes import eager
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
from helion_sinkhorn.runtime.wanted import cast, filled, only

FORWARD, BACKWARD = "hc_mixes", "hc_mixes_backward"


@functools.cache
def _launch():
    """The launcher, imported by the first call that needs it."""
    from helion_sinkhorn.ops.mhc.mixes import launch

    return launch


def leading(x: torch.Tensor, fn: torch.Tensor) -> torch.Size:
    """The tokens' dimensions of x (..., K), or of (..., n, C) with n C = K."""
    return x.shape[:-1] if x.shape[-1] == fn.shape[-1] else x.shape[:-2]


def _tokens(x: torch.Tensor, columns: int) -> torch.Tensor:
    """(T, columns), a row a token."""
    return x.reshape(x.numel() // columns, columns)


def forward(x, fn, norm_eps, eps_outside, precision, implementation):
    """(mixes, norms); see api.hc_mixes."""
    if implementation == "helion" and x.numel() > 0:
        with on_device(x):
            return _launch().forward(x, fn, norm_eps, eps_outside, precision)
    with without_autocast(x):
        mixes, norms = eager.forward(_tokens(x, fn.size(1)), fn, norm_eps, eps_outside)
    lead = leading(x, fn)
    return mixes.view(*lead, mixes.size(-1)), norms.view(*lead, 2)


def backward(dmixes, x, fn, mixes, norms, precision, implementation, wanted):
    """(dx, dfn) from what `forward` was given and returned."""
    if implementation == "helion" and x.numel() > 0:
        with on_device(x):
            return filled(_launch().backward(dmixes, x, fn, mixes, norms, precision, wanted), (x, fn))
    (m, size) = fn.shape
    rows = _tokens(dmixes, m), _tokens(x, size), fn, _tokens(mixes, m), _tokens(norms, 2)
    with without_autocast(x):
        dx, dfn = eager.backward(*rows, wanted)
    return filled((None if dx is None else dx.view(x.shape), dfn), (x, fn))


def _empty_results(x, fn, norm_eps, eps_outside, precision, implementation):
    lead, dtype = leading(x, fn), computing(x.dtype)
    return tuple(x.new_empty(*lead, columns, dtype=dtype) for columns in (fn.shape[-2], 2))


def _empty_gradients(dmixes, x, fn, mixes, norms, precision, implementation, wanted):
    made = x.new_empty(x.shape), fn.new_empty(fn.shape, dtype=computing(x.dtype))
    return filled(only(made, wanted), (x, fn))


def _keep(ctx, inputs, output):
    x, fn, _, _, ctx.precision, ctx.implementation = inputs
    ctx.save_for_backward(x, fn, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx, dmixes, _):
    if dmixes is None:
        return (None,) * 6
    x, fn, mixes, norms = ctx.saved_tensors
    run = HcMixesBackward.apply if differentiates(dmixes, x, fn) else call_backward
    wanted = ctx.needs_input_grad[:2]
    found = run(dmixes, x, fn, mixes, norms, ctx.precision, ctx.implementation, wanted)
    dx, dfn = only(found, wanted)
    return dx, cast(dfn, fn), *[None] * 4


call = define(
    FORWARD,
    "(Tensor x, Tensor fn, float norm_eps, bool eps_outside, str precision, str implementation)"
    " -> (Tensor, Tensor)",
    forward, _empty_results, 2,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor dmixes, Tensor x, Tensor fn, Tensor mixes, Tensor norms, str precision, str implementation, "
    "bool[] wanted) -> (Tensor, Tensor)",
    backward, _empty_gradients, 5,
)  # fmt: skip
HcMixes = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
HcMixesBackward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "tp -> tt", _empty_results, lambda x, fn, *_: len(leading(x, fn)))
roles(BACKWARD, "ttptt -> t+", _empty_gradients, before(1))
