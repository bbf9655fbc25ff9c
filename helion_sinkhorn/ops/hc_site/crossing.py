"""crossing(...): what hc_site and hc_boundary have in common, and whether kernels or parts make a call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.hc_mixes.api import check_options, check_tensors, hc_mixes
from helion_sinkhorn.ops.hc_post.api import check_update, hc_post
from helion_sinkhorn.ops.hc_pre.api import hc_pre
from helion_sinkhorn.ops.hc_site import torch_op
from helion_sinkhorn.ops.hc_site.boundary import torch_op as boundary_op
from helion_sinkhorn.ops.hc_site.constants import Constants
from helion_sinkhorn.ops.hc_split_sinkhorn.api import (
    SMALLEST_NORM_EPS,
    check_constants,
    check_counts,
    check_parameters,
    hc_split_sinkhorn,
)
from helion_sinkhorn.ops.hc_split_sinkhorn.limits import beyond_kernels
from helion_sinkhorn.runtime.checks import check_same_device, check_tensor, implementation_for
from helion_sinkhorn.runtime.streams import check_streams

Update = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""(f, post, comb, bias) of `hc_post`."""


class Crossing(NamedTuple):
    """A Site whose collapse took weights from elsewhere, and its own, which another collapse takes."""

    y: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor
    residual: torch.Tensor


def crossing(
    update: Update | None,
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    weights: torch.Tensor | None,
    sinkhorn_iters: int,
    eps: float,
    norm_eps: float,
    norm_weight: torch.Tensor | None,
    *,
    post_mult: float,
    pre_eps: float | None,
    post_eps: float,
    comb_order: str,
    precision: str,
    eps_outside: bool,
    implementation: str,
) -> Crossing:
    """hc_site of the streams x, or of what `update` makes of them; collapsed by `weights` if they are given.

    The other arguments are those of `hc_site`.
    """
    check(x, fn, scale, base, weights, sinkhorn_iters, norm_weight)
    check_options(norm_eps, precision, eps_outside)
    check_constants(eps, post_mult, pre_eps, post_eps, comb_order)
    if update is not None:
        f, post, comb, bias = update
        check_update(f, x, post, comb, bias)
    numbers = (eps, norm_eps, post_mult, eps if pre_eps is None else pre_eps, post_eps)
    constants = Constants(sinkhorn_iters, *map(float, numbers), comb_order, precision, eps_outside)
    if is_computed(implementation, constants, x, fn, scale, base, weights, norm_weight, *update or ()):
        if norm_weight is not None:
            fn = fn.float() * norm_weight.float()
        site = fn, scale, base
        if update is not None:
            given = f, x, post, comb, bias, weights, *site
            run = boundary_op.HcBoundary.apply if differentiates(*given) else boundary_op.call
            streams, *found = run(*given, *constants)
        elif differentiates(x, *site, weights):
            streams, *found = torch_op.HcSite.apply(x, *site, weights, *constants)
        else:
            streams, found = x, torch_op.call(x, *site, weights, *constants)
        return Crossing(*found[:4], streams)
    if update is not None:
        x = hc_post(f, x, post, comb, bias, comb_order=comb_order, implementation=implementation)
    mixes = hc_mixes(
        x.flatten(-2), fn, norm_eps, norm_weight,
        precision=precision, eps_outside=eps_outside, implementation=implementation,
    )  # fmt: skip
    pre, post, comb = hc_split_sinkhorn(
        mixes, scale, base, x.shape[-2], sinkhorn_iters, eps,
        post_mult=post_mult, pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order,
        implementation=implementation,
    )  # fmt: skip
    y = hc_pre(x, pre if weights is None else weights, implementation=implementation)
    return Crossing(y, pre, post, comb, x)


def differentiates(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd has to see a call on these, under a compiler too."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def is_computed(implementation: str, constants: Constants, x: torch.Tensor, *others: object) -> bool:
    """Whether kernels compute the call: on a GPU, for plain tensors and what the kernels of all take."""
    n, columns = x.shape[-2:]
    beyond = beyond_kernels(n, constants.n_iters, constants.eps)
    plain = all(t is None or type(t) in (torch.Tensor, torch.nn.Parameter) for t in (x, *others))
    if beyond or not plain or columns == 1 or constants.norm_eps < SMALLEST_NORM_EPS:
        return False
    return implementation_for(implementation, "x", x) == "helion"


def check(x, fn, scale, base, weights, n_iters, norm_weight) -> None:
    """Raise unless the tensors are those of one site, of as many iterations as there may be."""
    check_tensor("x", x, "(..., n, C)")
    check_streams(x)
    n, columns = x.shape[-2:]
    check_counts(n, n_iters)
    check_tensors(x, fn, norm_weight)
    wanted = n * n + 2 * n, n * columns
    if tuple(fn.shape) != wanted:
        raise ValueError(f"fn has shape {tuple(fn.shape)}; for x {tuple(x.shape)} pass {wanted}")
    check_parameters(scale, base, n, "x", x)
    if weights is not None:
        check_tensor("pre_next", weights, "(..., n)")
        check_same_device("pre_next", weights, "x", x)
        if weights.shape != x.shape[:-1]:
            raise ValueError(
                f"pre_next has shape {tuple(weights.shape)}; for these streams pass {tuple(x.shape[:-1])}"
            )
