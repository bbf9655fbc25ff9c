"""Parity: the error of a result beside that of float32 PyTorch, and the floor below which none counts.

The limit of an error must not come from the tested algorithm.  Two things are independent of every algorithm:
the error of PyTorch's autograd of the definition in float32 on the same inputs, and the effect of one
rounding of each logit and of each line sum, which no float32 evaluation can avoid.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.rounding import UNIT, half_ulp
from helion_sinkhorn.lab.truth import Peer, largest_error
from helion_sinkhorn.ops.sinkhorn import reference

DRAWS = 4
"""A floor is the largest of so many draws of rounding errors."""
LAST_PLACES = 8 * UNIT
"""Four units in the last place of the largest entry are below every floor."""
VANISHING = 2.0**-20
"""If a gradient is smaller than this times the upstream gradient, errors are relative to the latter."""


def rounded_definition(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, generator: torch.Generator
) -> torch.Tensor:
    """P by the definition in the dtype of x, with one rounding of each logit and of each line sum.

    Each rounding is an error of one unit of float32, up or down at random, and a line's is the same in all
    iterations: near a fixed point the same numbers are rounded again and again.
    """

    def rounding(shape: torch.Size) -> torch.Tensor:
        return UNIT * (2.0 * torch.randint(0, 2, shape, generator=generator, dtype=x.dtype) - 1.0)

    lead, trail = (-1, -2) if first == "rows" else (-2, -1)
    top = x.detach().amax(lead, keepdim=True)
    x = top + (x - top) * (1.0 + rounding(x.shape))
    errors = {axis: rounding(x.sum(axis, keepdim=True).shape) for axis in (lead, trail)}
    axes = [lead, trail] * n_iters
    if form == "log" or eps == 0:
        for axis in axes:
            x = x - (x.logsumexp(axis, keepdim=True) + errors[axis])
        return x.exp()
    p = x.softmax(lead) / (1.0 + errors[lead]) + eps
    for axis in axes[1:]:
        p = p / ((p.sum(axis, keepdim=True) + eps) * (1.0 + errors[axis]))
    return p


def gradient(function, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The derivative of <dy, function(x)> with respect to x, in the dtype of x."""
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf, dy.to(x.dtype))[0]


def peer_of_gradient(
    x: torch.Tensor,
    dy: torch.Tensor,
    exact: torch.Tensor,
    scale: torch.Tensor,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
) -> Peer:
    """The peer of dX, whose exact value is given in float64: PyTorch's rounded once to the dtype of x."""
    arguments = n_iters, eps, form, first
    scale = scale + VANISHING * dy.double().abs().amax((-2, -1), keepdim=True)
    floor = LAST_PLACES + (half_ulp(exact, x.dtype) / scale).amax((-2, -1))
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = gradient(lambda t: rounded_definition(t, *arguments, generator), x.double(), dy)
        floor = torch.maximum(floor, largest_error(moved, exact, scale))
    found = gradient(lambda t: reference.sinkhorn(t, n_iters, eps=eps, form=form, first=first), x.float(), dy)
    return Peer(scale, torch.maximum(largest_error(found.to(x.dtype), exact, scale), floor), floor)
