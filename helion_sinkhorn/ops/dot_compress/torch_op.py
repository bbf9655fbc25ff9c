"""The torch operators of dot compress: schemas, fakes, autograd, vmap, sharding and the device guard.

`helion_sinkhorn::dot_compress` returns (out, b) and its backward (dx, dy, db), with b and db
(..., parts, D, K) in the dtype of x; both take any leading shape and validated arguments
(dot_compress.py); `implementation` is "helion" or "reference" here.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.dot_compress import eager
from helion_sinkhorn.runtime.gradients import register_gradient
from helion_sinkhorn.runtime.torch_op import (
    batch_first,
    by_dispatcher,
    differentiates,
    last_derivative,
    no_double_backward,
    no_forward_mode,
    on_device,
    with_signature,
)

FORWARD = "helion_sinkhorn::dot_compress"
BACKWARD = "helion_sinkhorn::dot_compress_backward"

torch.library.define(
    FORWARD,
    "(Tensor x, Tensor y, Tensor? z, int parts, str implementation) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    BACKWARD,
    "(Tensor grad, Tensor x, Tensor y, Tensor b, str implementation) -> (Tensor, Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@functools.cache
def _launch():
    """kernels.dot_compress_launch, and with it Helion, on the first call that needs it."""
    from helion_sinkhorn.ops.dot_compress import launch as dot_compress_launch

    return dot_compress_launch


def _elements(t: torch.Tensor, trailing: int = 2) -> torch.Tensor:
    """All leading dimensions as one."""
    if t.dim() == trailing + 1:
        return t
    return t.reshape(t.shape[: t.dim() - trailing].numel(), *t.shape[t.dim() - trailing :])


def forward(x, y, z, parts, implementation):
    """(out, b); see dot_compress.dot_compress."""
    elements = _elements(x), _elements(y), None if z is None else _elements(z)
    if implementation == "reference" or x.numel() == 0:
        with torch.autocast(x.device.type, enabled=False):
            out, b = eager.forward(*elements, parts)
    else:
        with on_device(x):
            out, b = _launch().forward(*elements, parts)
    return out.view(y.shape), b.view(*x.shape[:-2], *b.shape[1:])


def backward(grad, x, y, b, implementation):
    """(dx, dy, db) from the b that `forward` returned."""
    elements = _elements(grad), _elements(x), _elements(y), _elements(b, 3)
    if implementation == "reference" or x.numel() == 0:
        with torch.autocast(x.device.type, enabled=False):
            dx, dy, db = eager.backward(*elements)
    else:
        with on_device(x):
            dx, dy, db = _launch().backward(*elements)
    return dx.view(x.shape), dy.view(y.shape), db.view(b.shape)


torch.library.impl(FORWARD, ("CPU", "CUDA"), forward)
torch.library.impl(BACKWARD, ("CPU", "CUDA"), backward)


@torch.library.register_fake(FORWARD)
def _(x, y, z, parts, implementation):
    return y.new_empty(y.shape), x.new_empty(*x.shape[:-2], parts, x.shape[-1], y.shape[-1])


@torch.library.register_fake(BACKWARD)
def _(grad, x, y, b, implementation):
    return tuple(t.new_empty(t.shape) for t in (x, y, b))


def _keep(ctx, inputs, output):
    x, y, z, _, implementation = inputs
    ctx.save_for_backward(x, y, output[1])
    ctx.has_z, ctx.implementation = z is not None, implementation
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _gradient(ctx, grad, _):
    if grad is None:
        return (None,) * 5
    x, y, b = ctx.saved_tensors
    run = DotCompressBackward.apply if differentiates(grad, x, y) else call_backward
    dx, dy, db = run(grad, x, y, b, ctx.implementation)
    return dx, dy, db.select(-3, 0) if ctx.has_z else None, None, None


def call(x, y, z, *arguments):
    """The operator, past the dispatcher where that has nothing to do."""
    if by_dispatcher(*[t for t in (x, y, z) if t is not None]):
        return torch.ops.helion_sinkhorn.dot_compress(x, y, z, *arguments)
    return forward(x, y, z, *arguments)


def call_backward(grad, x, y, b, implementation):
    """The same for its gradient."""
    if by_dispatcher(grad, x, y, b):
        return torch.ops.helion_sinkhorn.dot_compress_backward(grad, x, y, b, implementation)
    return backward(grad, x, y, b, implementation)


class DotCompress(torch.autograd.Function):
    """The operator with its gradient, as functorch accepts it."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(*arguments):
        return call(*arguments)

    setup_context = staticmethod(_keep)
    backward = staticmethod(_gradient)
    jvp = staticmethod(no_forward_mode("dot_compress"))


DotCompressBackward = last_derivative("dot_compress", call_backward)

register_gradient(FORWARD, _gradient, setup_context=_keep)
register_gradient(BACKWARD, no_double_backward("dot_compress"))


@torch.library.register_vmap(FORWARD)
def _(info, in_dims, x, y, z, *arguments):
    tensors = (batch_first(t, d, info.batch_size) for t, d in zip((x, y, z), in_dims, strict=False))
    return torch.ops.helion_sinkhorn.dot_compress(*tensors, *arguments), (0, 0)


@torch.library.register_vmap(BACKWARD)
def _(info, in_dims, grad, x, y, b, *arguments):
    tensors = (batch_first(t, d, info.batch_size) for t, d in zip((grad, x, y, b), in_dims, strict=False))
    return torch.ops.helion_sinkhorn.dot_compress_backward(*tensors, *arguments), (0, 0, 0)


def register_sharding() -> None:
    """Tell DTensor that leading dimensions shard freely and the two matrix dimensions are replicated."""
    _register_sharding()


# Dynamo cannot trace the registration, and need not: see ops.register_sharding
register_sharding._dynamo_marked_constant = True


@functools.cache
def _register_sharding() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding as register

    def strategies(ndim: int, outputs: int, inputs: list):
        return [([p] * outputs, [p if i else None for i in inputs])
                for p in (Replicate(), *(Shard(d) for d in range(ndim - 2)))]  # fmt: skip

    @register(torch.ops.helion_sinkhorn.dot_compress.default)
    def _(x, y, z, *arguments):
        return strategies(len(x.shape), 2, [True, True, z is not None, *[False] * len(arguments)])

    @register(torch.ops.helion_sinkhorn.dot_compress_backward.default)
    def _(grad, x, y, b, *arguments):
        return strategies(len(x.shape), 3, [True] * 4 + [False] * len(arguments))
