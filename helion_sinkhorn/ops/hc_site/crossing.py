"""crossing(...): what hc_site and hc_boundary have in common, and whether kernels or parts make a call."""

from __future__ import annotations

import sys
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.hc_mixes.api import check_options, check_tensors, hc_mixes
from helion_sinkhorn.ops.hc_post.api import check_update, hc_post
from helion_sinkhorn.ops.hc_pre.api import hc_pre
from helion_sinkhorn.ops.hc_site import torch_op
from helion_sinkhorn.ops.hc_site.boundary import composed
from helion_sinkhorn.ops.hc_site.boundary import torch_op as boundary_op
from helion_sinkhorn.ops.hc_site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.hc_site.constants import Constants
from helion_sinkhorn.ops.hc_split_sinkhorn.api import (
    SMALLEST_NORM_EPS,
    check_constants,
    check_counts,
    check_parameters,
    hc_split_sinkhorn,
)
from helion_sinkhorn.ops.hc_split_sinkhorn.limits import beyond_kernels
from helion_sinkhorn.runtime.checks import (
    as_int,
    check_same_device,
    check_tensor,
    implementation_for,
    refuse_shape,
)
from helion_sinkhorn.runtime.export import named_for_export
from helion_sinkhorn.runtime.streams import check_projection, merged, streams_of
from helion_sinkhorn.runtime.torch_op import differentiates
from helion_sinkhorn.runtime.updates import updated

Update = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]
"""(f, post, comb, bias) of `hc_post`."""


class Crossing(NamedTuple):
    """A Site whose collapse took weights from elsewhere, and its own, which another collapse takes."""

    y: torch.Tensor
    """(..., C), the sublayer's input."""
    pre: torch.Tensor
    """(..., n), the weights of this site."""
    post: torch.Tensor
    """(..., n)."""
    comb: torch.Tensor
    """(..., n, n)."""
    residual: torch.Tensor
    """(..., n, C), the new streams, to pass to `hc_post`."""


named_for_export(Crossing)


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
    sinkhorn_iters = as_int(sinkhorn_iters)
    if update is not None:
        f, post, comb, bias = update
        # first, or what is wrong with f or x is said of fn
        check_update(f, x, post, comb, bias)
    check(x, fn, scale, base, weights, sinkhorn_iters, norm_weight)
    check_options(norm_eps, precision, eps_outside)
    check_constants(eps, post_mult, pre_eps, post_eps, comb_order)
    numbers = (eps, norm_eps, post_mult, eps if pre_eps is None else pre_eps, post_eps)
    constants = Constants(sinkhorn_iters, *map(float, numbers), comb_order, precision, eps_outside)
    serves = implementation_for(implementation, "x", x)
    # otherwise each part says for itself who computes it
    alike = serves == "pytorch" or not beyond_parts(constants, *x.shape[-2:])
    distributed = _distributed(x, fn, scale, base, weights, norm_weight, *update or ())
    computed = serves == "helion" and alike and constants.norm_eps >= SMALLEST_NORM_EPS and not distributed
    # H200, 8192 tokens of 4 x 4096: in one pass 279 us, in parts 330; without a collapse in it 344
    in_one_pass = computed and weights is not None and x.shape[-2] <= MOST_STREAMS
    summed = update is not None and alike and not computed and composed.loses_digits(x, update[-1])
    if update is not None and not (in_one_pass or summed):
        x = hc_post(f, x, post, comb, bias, comb_order=comb_order, implementation=implementation)
        update = None
    if computed or summed:
        if norm_weight is not None:
            fn = fn.float() * norm_weight.float()
        if update is None:
            return Crossing(*torch_op.run(x, fn, scale, base, weights, *constants))
        given = f, x, post, comb, bias, weights, fn, scale, base
        if summed:
            if distributed:
                composed.register_sharding()
            streams, *found = composed.Composed.apply(*given, *constants, serves)
        else:
            wanted = differentiates(*[t for t in given if t is not None])
            run = boundary_op.HcBoundary.apply if wanted else boundary_op.call
            streams, *found = run(*given, *constants)
        updated(streams, f, x, post, comb, bias, comb_order, serves)
        return Crossing(*found[:4], streams)
    pre, post, comb = coefficients(
        x, fn, scale, base, sinkhorn_iters, eps, norm_eps, norm_weight, post_mult=post_mult, pre_eps=pre_eps,
        post_eps=post_eps, comb_order=comb_order, precision=precision, eps_outside=eps_outside,
        implementation=implementation,
    )  # fmt: skip
    y = hc_pre(x, pre if weights is None else weights, implementation=implementation)
    return Crossing(y, pre, post, comb, x)


def coefficients(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
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
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(pre, post, comb) of the streams x, by two operators; the arguments are those of `hc_coeffs`."""
    mixes = hc_mixes(
        merged(x), fn, norm_eps, norm_weight,
        precision=precision, eps_outside=eps_outside, implementation=implementation,
    )  # fmt: skip
    return hc_split_sinkhorn(
        mixes, scale, base, x.shape[-2], sinkhorn_iters, eps,
        post_mult=post_mult, pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order,
        implementation=implementation,
    )  # fmt: skip


def beyond_parts(constants: Constants, n: int, columns: int) -> bool:
    """Whether the kernels of a part do not take the call."""
    return beyond_kernels(n, constants.n_iters, constants.eps) is not None or columns == 1


def _distributed(*tensors: object) -> bool:
    """Whether any is a DTensor; only those who made one have imported it."""
    known = all(t is None or type(t) in (torch.Tensor, torch.nn.Parameter) for t in tensors)
    if known or "torch.distributed.tensor" not in sys.modules:
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(t, DTensor) for t in tensors)


def check(x, fn, scale, base, weights, n_iters, norm_weight) -> None:
    """Raise unless the tensors are those of one site, of as many iterations as there may be."""
    check_tensor("x", x, "(..., n, C)")
    check_tensor("fn", fn, "(n^2 + 2n, n C)")
    check_projection(x, fn, lambda n: n * (n + 2), streams_of)
    n = x.shape[-2]
    check_counts(n, n_iters)
    check_tensors(x, fn, norm_weight)
    check_parameters(scale, base, n, "x", x)
    if weights is not None:
        check_tensor("pre_next", weights, "(..., n)")
        check_same_device("pre_next", weights, "x", x)
        wanted = tuple(x.shape[:-1])
        if weights.shape != wanted:
            refuse_shape("pre_next", weights, wanted, f"for these streams pass {wanted}")
