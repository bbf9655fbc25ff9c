"""The torch operators: schemas, fakes, autograd, vmap, sharding and the device guard.

`helion_sinkhorn::sinkhorn` and `helion_sinkhorn::sinkhorn_backward` take any leading shape and
already validated arguments (api.py); `implementation` is "helion" or "reference" here.
The only module that touches torch.library.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.sinkhorn import eager
from helion_sinkhorn.ops.sinkhorn.implicit import eager as implicit
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

FORWARD = "helion_sinkhorn::sinkhorn"
BACKWARD = "helion_sinkhorn::sinkhorn_backward"
IMPLICIT = "helion_sinkhorn::sinkhorn_implicit"
IMPLICIT_BACKWARD = "helion_sinkhorn::sinkhorn_implicit_backward"
_ARGUMENTS = "int n_iters, float eps, str form, str first, str implementation"

torch.library.define(
    FORWARD,
    f"(Tensor logits, {_ARGUMENTS}, ScalarType out_dtype) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    BACKWARD, f"(Tensor grad, Tensor logits, {_ARGUMENTS}) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)


@functools.cache
def _launch():
    """kernels.launch, and with it Helion, on the first call that needs it."""
    from helion_sinkhorn.ops.sinkhorn import launch

    return launch


def forward(logits, n_iters, eps, form, first, implementation, out_dtype):
    """P; see api.sinkhorn."""
    if implementation == "reference":
        return eager.forward(logits, n_iters, eps, form, first, out_dtype)
    with on_device(logits):
        return _launch().forward(logits, n_iters, eps, form, first, out_dtype)


def backward(grad, logits, n_iters, eps, form, first, implementation):
    """dX of the iterations `forward` ran, recomputed from the logits."""
    if implementation == "reference":
        return eager.backward(grad, logits, n_iters, eps, form, first)
    with on_device(logits):
        return _launch().backward(grad, logits, n_iters, eps, form, first)


torch.library.impl(FORWARD, ("CPU", "CUDA"), forward)
torch.library.impl(BACKWARD, ("CPU", "CUDA"), backward)


@torch.library.register_fake(FORWARD)
def _(logits, n_iters, eps, form, first, implementation, out_dtype):
    return torch.empty(logits.shape, dtype=out_dtype, device=logits.device)


@torch.library.register_fake(BACKWARD)
def _(grad, logits, n_iters, eps, form, first, implementation):
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _keep_logits(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.arguments = inputs[1:6]


def _exact_gradient(ctx, grad):
    (logits,) = ctx.saved_tensors
    run = SinkhornBackward.apply if differentiates(grad, logits) else call_backward
    dx = run(grad, logits, *ctx.arguments)
    return dx, None, None, None, None, None, None


def call(logits, *arguments):
    """The forward operator, past the dispatcher where that has nothing to do."""
    if by_dispatcher(logits):
        return torch.ops.helion_sinkhorn.sinkhorn(logits, *arguments)
    return forward(logits, *arguments)


def call_backward(grad, logits, *arguments):
    """The same for the backward operator."""
    if by_dispatcher(grad, logits):
        return torch.ops.helion_sinkhorn.sinkhorn_backward(grad, logits, *arguments)
    return backward(grad, logits, *arguments)


class Sinkhorn(torch.autograd.Function):
    """The same gradient for eager calls: cheaper than the registered one, and functorch accepts it."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(*arguments):
        return call(*arguments)

    setup_context = staticmethod(_keep_logits)
    backward = staticmethod(_exact_gradient)
    jvp = staticmethod(no_forward_mode("sinkhorn"))


SinkhornBackward = last_derivative("sinkhorn", call_backward)
register_gradient(FORWARD, _exact_gradient, setup_context=_keep_logits)
register_gradient(BACKWARD, no_double_backward("sinkhorn"))


def _register_vmap(forward: str, backward: str) -> None:
    """Fold the mapped dimension into the batch."""
    of_values, of_gradients = (
        getattr(torch.ops.helion_sinkhorn, n.split("::")[1]) for n in (forward, backward)
    )

    @torch.library.register_vmap(forward)
    def _(info, in_dims, logits, *arguments):
        return of_values(logits.movedim(in_dims[0], 0), *arguments), 0

    @torch.library.register_vmap(backward)
    def _(info, in_dims, grad, kept, *arguments):
        grad = batch_first(grad, in_dims[0], info.batch_size)
        kept = batch_first(kept, in_dims[1], info.batch_size)
        return of_gradients(grad, kept, *arguments), 0


_register_vmap(FORWARD, BACKWARD)


def register_sharding() -> None:
    """Tell DTensor that batch dimensions shard freely and the two matrix dimensions are replicated."""
    _register_sharding()


# Dynamo cannot trace the registration, and need not: it runs once, at compile time.  This is what
# torch.compiler.assume_constant_result sets; calling that would import Dynamo and Triton with us.
register_sharding._dynamo_marked_constant = True


@functools.cache
def _register_sharding() -> None:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.experimental import register_sharding as register

    def strategies(ndim: int, tensors: int, others: int):
        placements = [Replicate(), *(Shard(d) for d in range(ndim - 2))]
        return [([p], [p] * tensors + [None] * others) for p in placements]

    @register(torch.ops.helion_sinkhorn.sinkhorn.default)
    def _(logits, *arguments):
        return strategies(len(logits.shape), 1, len(arguments))

    @register(torch.ops.helion_sinkhorn.sinkhorn_backward.default)
    def _(grad, logits, *arguments):
        return strategies(len(logits.shape), 2, len(arguments))

    @register(torch.ops.helion_sinkhorn.sinkhorn_implicit.default)
    def _(logits, *arguments):
        return strategies(len(logits.shape), 1, len(arguments))

    @register(torch.ops.helion_sinkhorn.sinkhorn_implicit_backward.default)
    def _(grad, p, *arguments):
        return strategies(len(p.shape), 2, len(arguments))


def describe(logits, n_iters, eps, form, first) -> tuple[str, str, str]:
    """(device, forward choice, backward choice) of the kernels for these arguments."""
    return _launch().describe(logits, n_iters, eps, form, first)


# ------------------------------------------------------------------------------- backward="implicit"

torch.library.define(
    IMPLICIT,
    f"(Tensor logits, {_ARGUMENTS}, ScalarType out_dtype, str system, str solver) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    IMPLICIT_BACKWARD,
    "(Tensor grad, Tensor p, int n_iters, str implementation, ScalarType dtype, str system, str solver)"
    " -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


def implicit_forward(logits, n_iters, eps, form, first, implementation, out_dtype, system, solver):
    """P; what differs from `forward` is its gradient."""
    return forward(logits, n_iters, eps, form, first, implementation, out_dtype)


def implicit_backward(grad, p, n_iters, implementation, dtype, system, solver):
    """dX at P, taken for a fixed point."""
    if implementation == "reference":
        return implicit.backward(grad, p, n_iters, system, solver, dtype)
    with on_device(p):
        return _launch().implicit_backward(grad, p, n_iters, system, solver, dtype)


torch.library.impl(IMPLICIT, ("CPU", "CUDA"), implicit_forward)
torch.library.impl(IMPLICIT_BACKWARD, ("CPU", "CUDA"), implicit_backward)


@torch.library.register_fake(IMPLICIT)
def _(logits, n_iters, eps, form, first, implementation, out_dtype, system, solver):
    return torch.empty(logits.shape, dtype=out_dtype, device=logits.device)


@torch.library.register_fake(IMPLICIT_BACKWARD)
def _(grad, p, n_iters, implementation, dtype, system, solver):
    return torch.empty(p.shape, dtype=dtype, device=p.device)


def _keep_p(ctx, inputs, output):
    logits, n_iters, _, _, _, implementation, _, system, solver = inputs
    ctx.save_for_backward(output)
    ctx.arguments = n_iters, implementation, logits.dtype, system, solver


def _implicit_gradient(ctx, grad):
    (p,) = ctx.saved_tensors
    run = ImplicitBackward.apply if differentiates(grad, p) else call_implicit_backward
    return run(grad, p, *ctx.arguments), *[None] * 8


def call_implicit(logits, *arguments):
    """The operator, past the dispatcher where that has nothing to do."""
    if by_dispatcher(logits):
        return torch.ops.helion_sinkhorn.sinkhorn_implicit(logits, *arguments)
    return implicit_forward(logits, *arguments)


def call_implicit_backward(grad, p, *arguments):
    """The same for its backward."""
    if by_dispatcher(grad, p):
        return torch.ops.helion_sinkhorn.sinkhorn_implicit_backward(grad, p, *arguments)
    return implicit_backward(grad, p, *arguments)


class Implicit(torch.autograd.Function):
    """`Sinkhorn` with the gradient of a fixed point; keeps P."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(*arguments):
        return call_implicit(*arguments)

    setup_context = staticmethod(_keep_p)
    backward = staticmethod(_implicit_gradient)
    jvp = staticmethod(no_forward_mode("sinkhorn"))


ImplicitBackward = last_derivative("sinkhorn", call_implicit_backward)
register_gradient(IMPLICIT, _implicit_gradient, setup_context=_keep_p)
register_gradient(IMPLICIT_BACKWARD, no_double_backward("sinkhorn"))
_register_vmap(IMPLICIT, IMPLICIT_BACKWARD)


def describe_implicit(logits, n_iters, eps, form, first, solver) -> tuple[str, str, str]:
    """`describe` with the kernel of the implicit gradient."""
    return _launch().describe_implicit(logits, n_iters, eps, form, first, solver)
