"""The torch operators of dot compress: schemas, fakes, autograd, vmap, sharding and the device guard.

`helion_sinkhorn::dot_compress` returns (out, b) and its backward (dx, dy, db), with b and db
(..., parts, D, K) in the dtype of x; both take any leading shape and validated arguments
(dot_compress.py); `implementation` is "helion" or "reference" here.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn import dot_compress_eager as eager
from helion_sinkhorn.ops import differentiates, on_device

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
    from helion_sinkhorn.kernels import dot_compress_launch

    return dot_compress_launch


def _elements(t: torch.Tensor, trailing: int = 2) -> torch.Tensor:
    """All leading dimensions as one."""
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
    run = (
        DotCompressBackward.apply
        if differentiates(grad, x, y)
        else torch.ops.helion_sinkhorn.dot_compress_backward
    )
    dx, dy, db = run(grad, x, y, b, ctx.implementation)
    return dx, dy, db.select(-3, 0) if ctx.has_z else None, None, None


def _no_double_backward(ctx, *grads):
    raise NotImplementedError(
        "dot_compress has no second derivative: its backward is a kernel without one. "
        "For double backward use helion_sinkhorn.reference.dot_compress, "
        "which autograd differentiates any number of times."
    )


def _no_forward_mode(ctx, *tangents):
    raise NotImplementedError(
        "dot_compress has no forward-mode derivative, which jvp, jacfwd and hessian ask for. "
        "Use grad, vjp or jacrev, or helion_sinkhorn.reference.dot_compress, "
        "which autograd differentiates in either mode."
    )


class DotCompress(torch.autograd.Function):
    """The operator with its gradient, as functorch accepts it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments):
        return torch.ops.helion_sinkhorn.dot_compress(*arguments)

    setup_context = staticmethod(_keep)
    backward = staticmethod(_gradient)
    jvp = staticmethod(_no_forward_mode)


class DotCompressBackward(torch.autograd.Function):
    """The gradient as a function whose own derivative raises."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*arguments):
        return torch.ops.helion_sinkhorn.dot_compress_backward(*arguments)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    backward = staticmethod(_no_double_backward)
    jvp = staticmethod(_no_forward_mode)


torch.library.register_autograd(FORWARD, _gradient, setup_context=_keep)
torch.library.register_autograd(BACKWARD, _no_double_backward)


def _batch_first(t: torch.Tensor | None, dim: int | None, size: int) -> torch.Tensor | None:
    if t is None:
        return None
    return t.movedim(dim, 0) if dim is not None else t.expand(size, *t.shape)


@torch.library.register_vmap(FORWARD)
def _(info, in_dims, x, y, z, *arguments):
    tensors = (_batch_first(t, d, info.batch_size) for t, d in zip((x, y, z), in_dims, strict=False))
    return torch.ops.helion_sinkhorn.dot_compress(*tensors, *arguments), (0, 0)


@torch.library.register_vmap(BACKWARD)
def _(info, in_dims, grad, x, y, b, *arguments):
    tensors = (_batch_first(t, d, info.batch_size) for t, d in zip((grad, x, y, b), in_dims, strict=False))
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
