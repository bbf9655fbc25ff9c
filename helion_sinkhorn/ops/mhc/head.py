"""Head: what makes the weights of a model's last collapse, the checks of it, and the weights."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes.api import check_options, check_tensors, projected
from helion_sinkhorn.ops.mhc.split.forms import gate
from helion_sinkhorn.ops.mhc.streams import check_projection, for_projection
from helion_sinkhorn.runtime.checks import check_finite, check_same_device, check_tensor, refuse_shape
from helion_sinkhorn.runtime.export import named_for_export


class Head(NamedTuple):
    """The head of a model, which makes the weights of the last collapse, with the arguments of `hc_head`."""

    fn: torch.Tensor
    """(n, n C), any floating dtype, the projection."""
    scale: torch.Tensor
    """(1,)."""
    base: torch.Tensor
    """(n,)."""
    norm_eps: float = 1e-6
    """Added to the mean square of the streams."""
    eps: float = 1e-6
    """Added to the weights."""
    norm_weight: torch.Tensor | None = None
    """(n C,), the weight of the norm, or None for 1."""


named_for_export(Head)


def check_head(x: torch.Tensor, head: Head, precision: str = "float32", eps_outside: bool = False) -> None:
    """Raise unless this is a head of the streams x."""
    fn, scale, base, norm_eps, eps, norm_weight = head
    shapes = {"x": "(..., n, C)", "fn": "(n, n C)", "scale": "(1,)", "base": "(n,)"}
    for (name, symbols), given in zip(shapes.items(), (x, fn, scale, base), strict=True):
        check_tensor(name, given, symbols)
        check_same_device(name, given, "x", x)
    check_projection(x, fn, rows=lambda n: n, n_of=lambda rows: rows)
    for name, given, wanted in (("scale", scale, (1,)), ("base", base, (x.size(-2),))):
        if given.shape != wanted:
            refuse_shape(name, given, wanted, f"for x of shape {tuple(x.shape)} pass {wanted}")
    check_finite("eps", eps)
    check_tensors(x, fn, norm_weight)
    check_options(norm_eps, precision, eps_outside)


def weights_of(
    x: torch.Tensor, head: Head, implementation: str, precision: str = "float32", eps_outside: bool = False
) -> torch.Tensor:
    """The weights (..., n) of the collapse of x, by a checked head."""
    norm = float(head.norm_eps), eps_outside, precision
    mix = projected(for_projection(x), head.fn, head.norm_weight, norm, implementation)
    return gate(mix * head.scale.to(mix.dtype) + head.base.to(mix.dtype)) + head.eps
