"""Gradients of registered operators for functorch's transforms, with and without a compiler.

`torch.library.register_autograd` makes an autograd.Function without setup_context, which torch.func.grad
refuses; Dynamo puts the registered operator into what it compiles inside such a transform.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch.autograd_function import enable_single_level_autograd_function

NAMESPACE = "helion_sinkhorn"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def operator_named(name: str) -> Any:
    """torch.ops.helion_sinkhorn.name."""
    return getattr(getattr(torch.ops, NAMESPACE), name)


def register_gradient(
    name: str,
    call: Callable[..., Any],
    gradient: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
) -> None:
    """`torch.library.register_autograd` for an operator of tensors, without defaults and keywords.

    Args:
        name: the operator's, without the namespace.
        call: what `torch_op.define` returned for it.
        gradient: (ctx, *gradients of the results) -> a tuple, with None for arguments that are no tensors.
        setup_context: (ctx, inputs, output), as of an autograd.Function.
    """
    operator = operator_named(name).default

    def below(keys, *arguments):
        with torch._C._AutoDispatchBelowAutograd():
            if call.is_eager(*arguments):
                # does what the dispatcher would do, without going through C++
                return call.run(*arguments)
            return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments)

    class Registered(torch.autograd.function._SingleLevelFunction):
        """One level of differentiation, which the dispatcher calls at each level that needs a gradient."""

        @staticmethod
        def forward(ctx, *given):
            # the keys come last, so that ctx.needs_input_grad has the operator's numbers of arguments
            *arguments, keys = given
            output = below(keys, *arguments)
            if setup_context is not None:
                setup_context(ctx, arguments, output)
            return tuple(output) if isinstance(output, list) else output

        @staticmethod
        def backward(ctx, *gradients):
            return *gradient(ctx, *gradients), None

        # only a Function has it, and compiled autograd reads it
        _compiled_autograd_key = staticmethod(torch.autograd.Function._compiled_autograd_key)

    def differentiated(keys, *arguments):
        if not (torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)):
            return below(keys, *arguments)
        with enable_single_level_autograd_function():
            return Registered.apply(*arguments, keys)

    _library.impl(name, differentiated, "Autograd", with_keyset=True)


def no_double_backward(operator: str):
    """The derivative of an operator's gradient, which raises."""

    def second(ctx, *grads):
        raise NotImplementedError(
            f"{operator} has no second derivative: its backward is a kernel without one. "
            f"For double backward use helion_sinkhorn.reference.{operator}, "
            "which autograd differentiates any number of times."
        )

    return second


def no_forward_mode(operator: str):
    """The forward-mode derivative, which raises."""

    def tangents(ctx, *given):
        raise NotImplementedError(
            f"{operator} has no forward-mode derivative, which jvp, jacfwd and hessian ask for. "
            f"Use grad, vjp or jacrev, or helion_sinkhorn.reference.{operator}, "
            "which autograd differentiates in either mode."
        )

    return tangents


def with_signature(function):
    """A function that stores its signature, which autograd would otherwise compute in 8 us of each call."""
    function.__signature__ = inspect.signature(function)
    return function
