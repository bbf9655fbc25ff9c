"""The torch operators of dot compress.

`helion_sinkhorn::dot_compress` returns (out, b), and its backward (dx, dy, db), with an empty tensor for each
that is not `wanted`; b and db are (..., parts, D, K) in the dtype of x.  Both take any leading shape;
`implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.dot_compress import eager
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.views import unflattened
from helion_sinkhorn.runtime.wanted import filled, only

FORWARD, BACKWARD = "dot_compress", "dot_compress_backward"
implementations = Implementations("helion_sinkhorn.ops.dot_compress.launch", eager)


def _elements(t: torch.Tensor, trailing: int = 2) -> torch.Tensor:
    """t with all leading dimensions as one."""
    if t.dim() == trailing + 1:
        return t
    return t.reshape(t.shape[: t.dim() - trailing].numel(), *t.shape[t.dim() - trailing :])


def forward(x, y, z, parts, implementation):
    """(out, b); see api.dot_compress."""
    elements = _elements(x), _elements(y), None if z is None else _elements(z)
    with implementations.chosen_for(x, implementation) as module:
        out, b = module.forward(*elements, parts)
    return unflattened(out, y.shape[:-2]), unflattened(b, x.shape[:-2])


def backward(grad, x, y, b, implementation, wanted):
    """(dx, dy, db) from the b that `forward` returned."""
    elements = _elements(grad), _elements(x), _elements(y), _elements(b, 3)
    with implementations.chosen_for(x, implementation) as module:
        made = module.backward(*elements, wanted)
    like = x, y, b
    return filled([None if d is None else d.view(t.shape) for d, t in zip(made, like, strict=True)], like)


def _empty_results(x, y, z, parts, implementation):
    return y.new_empty(y.shape), x.new_empty(*x.shape[:-2], parts, x.shape[-1], y.shape[-1])


def _empty_gradients(grad, x, y, b, implementation, wanted):
    return filled(only([t.new_empty(t.shape) for t in (x, y, b)], wanted), (x, y, b))


def _keep(ctx, inputs, output):
    x, y, _, _, implementation = inputs
    ctx.save_for_backward(x, y, output[1])
    ctx.implementation = implementation
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad, _):
    if grad is None:
        return (None,) * 5
    x, y, b = ctx.saved_tensors
    wanted = ctx.needs_input_grad[:3]
    dx, dy, db = only(apply_backward(grad, x, y, b, ctx.implementation, wanted), wanted)
    return dx, dy, None if db is None else db.select(-3, 0), None, None


call = define(
    FORWARD,
    "(Tensor x, Tensor y, Tensor? z, int parts, str implementation) -> (Tensor, Tensor)",
    forward, _empty_results, 3,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor grad, Tensor x, Tensor y, Tensor b, str implementation, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 4,
)  # fmt: skip
apply = differentiable(FORWARD, "dot_compress", call, _keep, _gradient)
apply_backward = last(BACKWARD, "dot_compress", call_backward)
roles(FORWARD, "ttt -> tt", _empty_results, before(2))
roles(BACKWARD, "tttt -> ttt", _empty_gradients, before(2))
