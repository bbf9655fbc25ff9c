"""The torch operators of recurrent linear attention: schemas, fakes, autograd and the device guard.

`helion_sinkhorn::recurrent_linear_attention` returns (o, last state) and its backward the gradients of
q, k, v and of those of g, g_gamma, gk, gv, initial_state that are there.  Both take validated arguments
(linear_attention.py); `serves` is "reference" or the method of the kernels.
"""

from __future__ import annotations

import contextlib
import functools

import torch

from helion_sinkhorn import linear_attention_eager as eager
from helion_sinkhorn.ops import differentiates, on_device

FORWARD = "helion_sinkhorn::recurrent_linear_attention"
BACKWARD = "helion_sinkhorn::recurrent_linear_attention_backward"
_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? g, Tensor? g_gamma, Tensor? gk, Tensor? gv, float scale,"
    " Tensor? initial_state, bool reverse, Tensor? cu_seqlens, str serves"
)
DIFFERENTIABLE = (0, 1, 2, 3, 4, 5, 6, 8)
"""Where the tensors with gradients stand among the arguments."""

torch.library.define(FORWARD, f"({_ARGUMENTS}) -> (Tensor, Tensor)", tags=torch.Tag.pt2_compliant_tag)
torch.library.define(
    BACKWARD, f"(Tensor? do, Tensor? dend, {_ARGUMENTS}) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag
)


@functools.cache
def _launch(serves: str):
    """The launches of a method, and with them Helion, on the first call that needs it."""
    from helion_sinkhorn.kernels import linear_attention_chunked_launch, linear_attention_launch

    return {"recurrent": linear_attention_launch, "chunked": linear_attention_chunked_launch}[serves]


@contextlib.contextmanager
def _served(q: torch.Tensor, serves: str):
    """What has `forward` and `backward`; a launch would have nothing to do without a step."""
    if serves == "reference" or q.numel() == 0:
        with torch.autocast(q.device.type, enabled=False):
            yield eager
    else:
        with on_device(q):
            yield _launch(serves)


def forward(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, serves):
    """(o, last state); see linear_attention.recurrent_linear_attention."""
    with _served(q, serves) as run:
        return run.forward(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens)


def backward(do, dend, q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, serves):
    """The gradients of `forward` from its arguments: nothing else is kept."""
    tensors = q, k, v, g, g_gamma, gk, gv
    with _served(q, serves) as run:
        return run.backward(do, dend, *tensors, scale, initial_state, reverse, cu_seqlens)


torch.library.impl(FORWARD, ("CPU", "CUDA"), forward)
torch.library.impl(BACKWARD, ("CPU", "CUDA"), backward)


@torch.library.register_fake(FORWARD)
def _(q, k, v, g, g_gamma, gk, gv, scale, initial_state, reverse, cu_seqlens, serves):
    sequences = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    state = q.new_empty(
        (sequences, q.shape[2], q.shape[3], v.shape[3]), dtype=torch.promote_types(q.dtype, torch.float32)
    )
    return v.new_empty(v.shape), state


@torch.library.register_fake(BACKWARD)
def _(do, dend, *arguments):
    tensors = (arguments[i] for i in DIFFERENTIABLE)
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
    run = Backward.apply if differentiates(*given) else _backward_operator
    found = iter(run(do, dend, *tensors, ctx.scale, start, ctx.reverse, cu_seqlens, ctx.serves))
    # as many as there are tensors, in the order of the arguments
    *gradients, dstart = [None if x is None else next(found) for x in (*tensors, start)]
    return *gradients, None, dstart, None, None, None


def _backward_operator(*arguments):
    return torch.ops.helion_sinkhorn.recurrent_linear_attention_backward(*arguments)


def _no_double_backward(ctx, *grads):
    raise NotImplementedError(
        "recurrent_linear_attention has no second derivative: its backward is a kernel without one. "
        "For double backward use helion_sinkhorn.reference.recurrent_linear_attention, "
        "which autograd differentiates any number of times."
    )


def _no_forward_mode(ctx, *tangents):
    raise NotImplementedError(
        "recurrent_linear_attention has no forward-mode derivative, which jvp, jacfwd and hessian ask for. "
        "Use grad, vjp or jacrev, or helion_sinkhorn.reference.recurrent_linear_attention, "
        "which autograd differentiates in either mode."
    )


class RecurrentLinearAttention(torch.autograd.Function):
    """The operator with its gradient, as functorch accepts it."""

    @staticmethod
    def forward(*arguments):
        return torch.ops.helion_sinkhorn.recurrent_linear_attention(*arguments)

    setup_context = staticmethod(_keep_arguments)
    backward = staticmethod(_gradient)
    jvp = staticmethod(_no_forward_mode)


class Backward(torch.autograd.Function):
    """The gradient as a function whose own derivative raises."""

    @staticmethod
    def forward(*arguments):
        return tuple(_backward_operator(*arguments))

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_no_double_backward)
    jvp = staticmethod(_no_forward_mode)


torch.library.register_autograd(FORWARD, _gradient, setup_context=_keep_arguments)
torch.library.register_autograd(BACKWARD, _no_double_backward)
