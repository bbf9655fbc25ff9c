"""Gradients of parameters with main_grad buffers, and their sums over ranks that share a sequence."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from helion_sinkhorn.runtime.checks import type_of


def into_main_grad(parameter: torch.Tensor) -> torch.Tensor:
    """The values of a parameter whose gradient is added to `parameter.main_grad` in the backward.

        main_grad += dparameter,  in the dtype of main_grad and not of the parameter
    Pass the result instead of the parameter: `hc_site(x, into_main_grad(fn), scale, base)`.  Megatron
    Core and TransformerEngine have this convention (`fuse_wgrad_accumulation`).  If the parameter has an
    attribute `grad_added_to_main_grad`, it becomes True, and `grad` is zeros, so that the hooks run that
    reduce main_grad over ranks; otherwise the parameter gets no `grad`.  A parameter whose main_grad is
    missing or None gets its gradient in `grad`, and so does every parameter under torch.compile.

    Args:
        parameter: any shape, floating; main_grad has its shape, float32 as a rule.

    Returns:
        The parameter's values, in float32 if its entries have two bytes.

    Numerical policy: the gradient of a narrow parameter is float32, and is not rounded to the parameter's
        dtype before it is added.

    Raises:
        ValueError: in the backward, main_grad has another shape.
    """
    if not isinstance(parameter, torch.Tensor):
        raise TypeError(f"parameter is {type_of(parameter)}; pass a torch.Tensor, a parameter of a site")
    if torch.compiler.is_compiling() or not (torch.is_grad_enabled() and parameter.requires_grad):
        return parameter
    return _IntoMainGrad.apply(parameter)


class _IntoMainGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, parameter):
        ctx.parameter = parameter
        return parameter.float() if parameter.dtype.itemsize < 4 else parameter.view_as(parameter)

    @staticmethod
    def backward(ctx, gradient):
        parameter = ctx.parameter
        main = getattr(parameter, "main_grad", None)
        if main is None:
            return gradient.to(parameter.dtype)
        if main.shape != parameter.shape:
            raise ValueError(
                f"main_grad has shape {tuple(main.shape)}; pass the parameter's, {tuple(parameter.shape)}"
            )
        with torch.no_grad():
            main.add_(gradient)
        if not hasattr(parameter, "grad_added_to_main_grad"):
            return None
        parameter.grad_added_to_main_grad = True
        return torch.zeros_like(parameter)


def mark_sequence_parallel(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Set `sequence_parallel` on parameters, so that Megatron Core sums their gradients over tensor ranks.

    Where each rank has its own tokens (sequence, context or data parallel), the gradients of fn, scale, base,
    norm weights and a bias of `hc_post` are sums over a rank's tokens, and have to be summed over ranks.  The
    gradients of f, the streams, pre, post and comb belong to tokens, and stay on their rank.

    Args:
        parameters: the parameters of sites and heads, `module.parameters()`.
    """
    for parameter in parameters:
        parameter.sequence_parallel = True
