"""The torch operators of recurrent linear attention.

`helion_sinkhorn::recurrent_linear_attention` returns (o, last state), and its backward the `wanted` gradients
of q, k, v, g, g_gamma, gk, gv and initial_state.  Values that a compiler does not know are checked here;
`serves` is "pytorch" or the method of the kernels.
"""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.ops.linear_attention import eager
from helion_sinkhorn.ops.linear_attention.problem import Problem
from helion_sinkhorn.runtime.gradients import NAMESPACE
from helion_sinkhorn.runtime.tokens import batch_first, one_by_one
from helion_sinkhorn.runtime.torch_op import (
    Implementations,
    define,
    differentiable,
    last,
    operator_named,
)
from helion_sinkhorn.runtime.wanted import only

FORWARD, BACKWARD = "recurrent_linear_attention", "recurrent_linear_attention_backward"
ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? g_gamma, Tensor? gk, Tensor? gv, float scale,"
    " Tensor? initial_state, bool reverse, Tensor? cu_seqlens, str serves"
)
DIFFERENTIABLE = (0, 1, 2, 3, 4, 5, 6, 8)
"""The places of the tensors with gradients among the arguments."""


METHODS = {
    method: Implementations(f"helion_sinkhorn.ops.linear_attention.{method}.launch", eager)
    for method in ("recurrent", "chunked")
}


def _computing(q: torch.Tensor, serves: str):
    """The context of a call, whose value is the module with `forward` and `backward`."""
    if serves == "pytorch":
        return METHODS["recurrent"].chosen_for(q, serves)
    return METHODS[serves].chosen_for(q, "helion")


def forward(*arguments):
    """(o, last state); see api.recurrent_linear_attention."""
    *arguments, serves = arguments
    p = Problem(*arguments)
    if not math.isfinite(p.scale):
        raise ValueError(f"scale is {p.scale}; pass a finite value, or None for Dk ** -0.5")
    with _computing(p.q, serves) as run:
        return run.forward(p)


def backward(do, dend, *arguments):
    """The gradients of `forward`, from its arguments only."""
    *arguments, serves, wanted = arguments
    p = Problem(*arguments)
    with _computing(p.q, serves) as run:
        return [x for x in run.backward(do, dend, p, wanted) if x is not None]


def _empty_results(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, serves):
    """Uninitialised o and last state; arguments may have mapped dimensions in front."""
    sequences = q.shape[-4] if cu_seqlens is None else cu_seqlens.shape[-1] - 1
    state = *q.shape[:-4], sequences, *q.shape[-2:], v.shape[-1]
    return v.new_empty(v.shape), q.new_empty(state, dtype=torch.promote_types(q.dtype, torch.float32))


def _empty_gradients(do, dend, *arguments):
    tensors = only([arguments[i] for i in DIFFERENTIABLE], arguments[-1])
    return [x.new_empty(x.shape) for x in tensors if x is not None]


def _keep_arguments(ctx, inputs, output):
    ctx.save_for_backward(*[inputs[i] for i in DIFFERENTIABLE], inputs[10])
    ctx.scale, ctx.reverse, ctx.serves = inputs[7], inputs[9], inputs[11]
    ctx.set_materialize_grads(False)


def _gradient(ctx, do, dend):
    if do is None and dend is None:
        return (None,) * 12
    *tensors, start, cu_seqlens = ctx.saved_tensors
    given = [x for x in (do, dend, *tensors, start) if x is not None]
    # a compiler traces no such tensors, and cannot trace the question
    if not torch.compiler.is_compiling() and any(map(torch._C._functorch.is_legacy_batchedtensor, given)):
        # torch has no fallback for an operator that takes or returns optional tensors
        raise NotImplementedError(
            "recurrent_linear_attention has no batched gradients, which is_grads_batched=True and "
            "vectorize=True need; use torch.func.vjp with torch.vmap, or torch.func.jacrev"
        )
    wanted = [ctx.needs_input_grad[i] for i in DIFFERENTIABLE]
    options = ctx.scale, start, ctx.reverse, cu_seqlens, ctx.serves, wanted
    wanted_gradients = iter(apply_backward(do, dend, *tensors, *options))
    # the wanted gradients, in the order of the arguments
    *gradients, dstart = [next(wanted_gradients) if w else None for w in wanted]
    return *gradients, None, dstart, None, None, None


call = define(FORWARD, f"({ARGUMENTS}) -> (Tensor, Tensor)", forward, _empty_results, 11)
call_backward = define(
    BACKWARD,
    f"(Tensor? do, Tensor? dend, {ARGUMENTS}, bool[] wanted) -> Tensor[]",
    backward, _empty_gradients, 13,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep_arguments, _gradient, rarely=(1,))
apply_backward = last(BACKWARD, FORWARD, call_backward)


def _register_vmap(name: str, first: int) -> None:
    """Fold the mapped dimension into the batch; q is argument `first`.

    Where the gates of heads or the offsets of packed sequences are mapped, which have no batch, elements are
    computed one by one.
    """
    operator = operator_named(name)

    @torch.library.register_vmap(f"{NAMESPACE}::{name}")
    def _(info, in_dims, *arguments):
        size = info.batch_size
        arguments = [batch_first(x, d, size) for x, d in zip(arguments, in_dims, strict=True)]
        if size > 0 and arguments[first + 4] is None and arguments[first + 10] is None:
            results = operator(*[x.flatten(0, 1) if isinstance(x, torch.Tensor) else x for x in arguments])
            results = [x.unflatten(0, (size, x.size(0) // size)) for x in results]
        else:
            results = one_by_one(operator, _empty_gradients if first else _empty_results, size, arguments)
        return (results, [0] * len(results)) if first else (tuple(results), (0, 0))


_register_vmap(FORWARD, 0)
_register_vmap(BACKWARD, 2)
