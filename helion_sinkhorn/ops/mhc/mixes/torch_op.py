"""The torch operators of hc_mixes.

`helion_sinkhorn::hc_mixes` returns (mixes, norms); norms (..., 2) are r and k of `eager.norms_of` and carry
no gradient.  Its backward returns (dx, dfn), where dfn is a sum over tokens in the computing dtype, and an
empty tensor for each that is not `wanted`.  `hc_mixes_prenorm` returns (product, mean square), and its
backward (dx, dfn).  All take any leading shape; `implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.mhc.mixes import eager
from helion_sinkhorn.ops.mhc.streams import leading
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.wanted import cast, filled, only

FORWARD, BACKWARD = "hc_mixes", "hc_mixes_backward"
PRENORM, PRENORM_BACKWARD = "hc_mixes_prenorm", "hc_mixes_prenorm_backward"
implementations = Implementations("helion_sinkhorn.ops.mhc.mixes.launch", eager)


def _tokens(x: torch.Tensor, columns: int) -> torch.Tensor:
    """x as (T, columns), with a row for each token."""
    return x.reshape(x.numel() // columns, columns)


def forward(x, fn, norm_eps, eps_outside, precision, implementation):
    """(mixes, norms); see api.hc_mixes."""
    with implementations.chosen_for(x, implementation) as module:
        if module is not eager:
            return module.forward(x, fn, norm_eps, eps_outside, precision)
        mixes, norms = eager.forward(x, fn, norm_eps, eps_outside)
    lead = leading(x, fn)
    return mixes.view(*lead, mixes.size(-1)), norms.view(*lead, 2)


def backward(dmixes, x, fn, mixes, norms, precision, implementation, wanted):
    """(dx, dfn) from what `forward` was given and returned."""
    m, size = fn.shape
    with implementations.chosen_for(x, implementation) as module:
        if module is not eager:
            return filled(module.backward(dmixes, x, fn, mixes, norms, precision, wanted), (x, fn))
        rows = _tokens(dmixes, m), _tokens(x, size), fn, _tokens(mixes, m), _tokens(norms, 2)
        dx, dfn = eager.backward(*rows, wanted)
    return filled((None if dx is None else dx.view(x.shape), dfn), (x, fn))


def prenorm(x, fn, precision, implementation):
    """(product, mean square); see api.hc_mixes."""
    # results are made in their shapes: where there are several, autograd lets nobody change a view in place
    product, square = _empty_prenorm(x, fn, precision, implementation)
    rows = product.view(square.numel(), fn.size(0)), square.view(-1)
    with implementations.chosen_for(x, implementation) as module:
        if module is eager:
            eager.prenorm(_tokens(x, fn.size(1)), fn, *rows)
        else:
            module.prenorm(x, fn, precision, *rows)
    return product, square


def prenorm_backward(dproduct, dsquare, x, fn, precision, implementation, wanted):
    """(dx, dfn) from what `prenorm` was given; an upstream gradient that is None is 0."""
    if dproduct is None or dsquare is None:
        zeros = (t.zero_() for t in _empty_prenorm(x, fn, precision, implementation))
        dproduct, dsquare = (z if d is None else d for d, z in zip((dproduct, dsquare), zeros, strict=True))
    m, size = fn.shape
    with implementations.chosen_for(x, implementation) as module:
        if module is not eager:
            return filled(module.prenorm_backward(dproduct, dsquare, x, fn, precision, wanted), (x, fn))
        given = _tokens(dproduct, m), dsquare.reshape(-1), _tokens(x, size), fn
        dx, dfn = eager.prenorm_backward(*given, wanted)
    return filled((None if dx is None else dx.view(x.shape), dfn), (x, fn))


def _empty_results(x, fn, norm_eps, eps_outside, precision, implementation):
    lead, dtype = leading(x, fn), COMPUTING[x.dtype]
    return tuple(x.new_empty(*lead, columns, dtype=dtype) for columns in (fn.shape[-2], 2))


def _empty_prenorm(x, fn, precision, implementation):
    lead, dtype = leading(x, fn), COMPUTING[x.dtype]
    return x.new_empty(*lead, fn.shape[-2], dtype=dtype), x.new_empty(lead, dtype=dtype)


def _empty_prenorm_gradients(dproduct, dsquare, x, fn, precision, implementation, wanted):
    return _empty_gradients(dproduct, x, fn, None, None, precision, implementation, wanted)


def _empty_gradients(dmixes, x, fn, mixes, norms, precision, implementation, wanted):
    made = x.new_empty(x.shape), fn.new_empty(fn.shape, dtype=COMPUTING[x.dtype])
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
    wanted = ctx.needs_input_grad[:2]
    gradients = apply_backward(dmixes, x, fn, mixes, norms, ctx.precision, ctx.implementation, wanted)
    dx, dfn = only(gradients, wanted)
    return dx, cast(dfn, fn), *[None] * 4


def _keep_prenorm(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:2])
    ctx.precision, ctx.implementation = inputs[2:]
    ctx.set_materialize_grads(False)


def _prenorm_gradient(ctx, dproduct, dsquare):
    given = dproduct, dsquare, *ctx.saved_tensors
    if dproduct is None and dsquare is None:
        return (None,) * 4
    wanted = ctx.needs_input_grad[:2]
    dx, dfn = only(apply_prenorm_backward(*given, ctx.precision, ctx.implementation, wanted), wanted)
    return dx, cast(dfn, given[3]), None, None


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
call_prenorm = define(
    PRENORM, "(Tensor x, Tensor fn, str precision, str implementation) -> (Tensor, Tensor)",
    prenorm, _empty_prenorm, 2,
)  # fmt: skip
call_prenorm_backward = define(
    PRENORM_BACKWARD,
    "(Tensor? dproduct, Tensor? dsquare, Tensor x, Tensor fn, str precision, str implementation, "
    "bool[] wanted) -> (Tensor, Tensor)",
    prenorm_backward, _empty_prenorm_gradients, 4,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_backward = last(BACKWARD, FORWARD, call_backward)
apply_prenorm = differentiable(PRENORM, FORWARD, call_prenorm, _keep_prenorm, _prenorm_gradient)
apply_prenorm_backward = last(PRENORM_BACKWARD, FORWARD, call_prenorm_backward)
roles(FORWARD, "tp -> tt", _empty_results, lambda x, fn, *_: len(leading(x, fn)))
roles(BACKWARD, "ttptt -> t+", _empty_gradients, before(1))
roles(PRENORM, "tp -> tt", _empty_prenorm, lambda x, fn, *_: len(leading(x, fn)))
roles(
    PRENORM_BACKWARD,
    "tttp -> t+",
    _empty_prenorm_gradients,
    lambda dproduct, dsquare, x, fn, *_: len(leading(x, fn)),
)
