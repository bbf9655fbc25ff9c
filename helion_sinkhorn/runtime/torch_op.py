"""Registering an operator with torch: schema, fakes, gradient, vmap, sharding and the device guard."""

from __future__ import annotations

import contextlib
import inspect

import torch
from torch.autograd import forward_ad

_HERE = contextlib.nullcontext()


def on_device(x: torch.Tensor):
    """Helion launches on the current device: make it the tensor's."""
    return _HERE if x.device.index == torch.cuda.current_device() else torch.cuda.device(x.device)


def differentiates(*tensors: torch.Tensor) -> bool:
    """Whether autograd, in reverse or forward mode, has to see a call on these."""
    needed = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    # within a dual level the bare operator would answer with silently zero tangents
    return (needed and not torch.compiler.is_compiling()) or forward_ad._current_level >= 0


def no_double_backward(operator: str):
    """A derivative that raises: that of an operator's gradient."""

    def second(ctx, *grads):
        raise NotImplementedError(
            f"{operator} has no second derivative: its backward is a kernel without one. "
            f"For double backward use helion_sinkhorn.reference.{operator}, "
            "which autograd differentiates any number of times."
        )

    return second


def no_forward_mode(operator: str):
    """A derivative that raises: that of jvp."""

    def tangents(ctx, *given):
        raise NotImplementedError(
            f"{operator} has no forward-mode derivative, which jvp, jacfwd and hessian ask for. "
            f"Use grad, vjp or jacrev, or helion_sinkhorn.reference.{operator}, "
            "which autograd differentiates in either mode."
        )

    return tangents


def with_signature(function):
    """A function that carries its signature: autograd would take 8 us of each call to find it."""
    function.__signature__ = inspect.signature(function)
    return function


def last_derivative(operator: str, gradient) -> type[torch.autograd.Function]:
    """An operator's gradient as a function whose own derivative raises."""

    class LastDerivative(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(gradient)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        backward = staticmethod(no_double_backward(operator))
        jvp = staticmethod(no_forward_mode(operator))

    return LastDerivative


def _bare(*tensors: torch.Tensor) -> bool:
    """Whether the dispatcher would only call us: no mode, transform, subclass or lazy view is about."""
    return (
        all(
            type(t) in (torch.Tensor, torch.nn.Parameter)
            and not t.is_neg()
            and not t._is_zerotensor()
            # of autograd.grad(is_grads_batched=True), which no interpreter stands for
            and not torch._C._functorch.is_legacy_batchedtensor(t)
            for t in tensors
        )
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.peek_interpreter_stack() is None
        and not torch._C._is_torch_function_mode_enabled()
    )


def by_dispatcher(*tensors: torch.Tensor) -> bool:
    """Whether an operator has to be called as one: the dispatcher has something to do."""
    return torch.compiler.is_compiling() or tensors[-1].is_meta or not _bare(*tensors)


def batch_first(x, dim: int | None, size: int):
    """A mapped argument with its mapped dimension, of this size, in front; what is no tensor as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    return x.movedim(dim, 0) if dim is not None else x.expand(size, *x.shape)
