"""hc_site(...): the contract, its checks, and whether its kernels or its parts make a call."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.hc_mixes.api import check_options, check_tensors, hc_mixes
from helion_sinkhorn.ops.hc_pre.api import hc_pre
from helion_sinkhorn.ops.hc_site import torch_op
from helion_sinkhorn.ops.hc_split_sinkhorn.api import (
    SMALLEST_NORM_EPS,
    check_constants,
    check_counts,
    check_parameters,
    hc_split_sinkhorn,
)
from helion_sinkhorn.ops.hc_split_sinkhorn.limits import beyond_kernels
from helion_sinkhorn.runtime.checks import (
    check_implementation,
    check_same_device,
    check_tensor,
    implementation_for,
)
from helion_sinkhorn.runtime.streams import check_streams


class Site(NamedTuple):
    """What a site makes of its streams."""

    y: torch.Tensor
    """(..., C), the sublayer's input."""
    post: torch.Tensor
    """(..., n)."""
    comb: torch.Tensor
    """(..., n, n)."""
    residual: torch.Tensor
    """(..., n, C), the streams themselves, to pass to `hc_post`."""


class Crossing(NamedTuple):
    """A Site whose collapse took weights from elsewhere, and its own, which another collapse takes."""

    y: torch.Tensor
    pre: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor
    residual: torch.Tensor


def hc_site(
    x: torch.Tensor,
    fn: torch.Tensor,
    scale: torch.Tensor,
    base: torch.Tensor,
    sinkhorn_iters: int = 20,
    eps: float = 1e-6,
    norm_eps: float = 1e-6,
    norm_weight: torch.Tensor | None = None,
    *,
    post_mult: float = 2.0,
    pre_eps: float | None = None,
    post_eps: float = 0.0,
    comb_order: str = "io",
    precision: str = "float32",
    eps_outside: bool = False,
    implementation: str = "auto",
) -> Site:
    """Make a sublayer's input and the coefficients of its output from the residual streams.

        mixes = hc_mixes(x, fn, norm_eps, norm_weight),  (pre, post, comb) = hc_split_sinkhorn(mixes, ...)
        y_c = sum_i pre_i x_ic,  residual = x
    The values are those of the three operators.  x has three uses, two here and one as the residual of
    `hc_post`, and so three gradients, which autograd would add.  Pass `residual`, and not x, to `hc_post`, or
    to whatever makes the new streams: its gradient then comes back here, and one kernel writes
        dx = dresidual + pre dy + r dmixes fn + k <dmixes, mixes> x
    with the gradient of fn.

    Args:
        x: (..., n, C), float32, bfloat16, float16 or float64, the streams.
        fn: (n^2 + 2n, n C), any floating dtype, the projection.
        scale: (3,), for pre, post and comb.
        base: (n^2 + 2n,).
        sinkhorn_iters, eps, post_mult, pre_eps, post_eps, comb_order: as `hc_split_sinkhorn` has them.
        norm_eps, norm_weight, precision, eps_outside: as `hc_mixes` has them.
        implementation: "auto", "helion" or "pytorch".

    Returns:
        y (..., C) in the dtype of x; post (..., n) and comb (..., n, n), float32, float64 for float64 x;
        residual, x as a view that has this function's gradient.

    Numerical policy: that of the three operators, but dx is rounded once, where theirs are rounded one by one
        and then in autograd's sums.  Bitwise reproducible, and a token's results and its dx do not depend on
        the others.  On a CPU, in float64, for DTensors, one stream, a norm_eps below 1e-37 and more than the
        kernels' iterations, the three operators are called, and autograd adds.

    Raises:
        TypeError, ValueError, NotImplementedError: what the three operators raise.

    Source: Xie et al., mHC: Manifold-Constrained Hyper-Connections (arXiv 2512.24880), section 4.2.
    """
    implementation = check_implementation(implementation)
    y, _, post, comb, residual = crossing(
        x, fn, scale, base, None, sinkhorn_iters, eps, norm_eps, norm_weight, post_mult=post_mult,
        pre_eps=pre_eps, post_eps=post_eps, comb_order=comb_order, precision=precision,
        eps_outside=eps_outside, implementation=implementation,
    )  # fmt: skip
    return Site(y, post, comb, residual)


def crossing(
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
    """The same, collapsed by `weights` (..., n) where they are given; arguments as of `hc_site`."""
    check(x, fn, scale, base, weights, sinkhorn_iters, norm_weight)
    check_options(norm_eps, precision, eps_outside)
    check_constants(eps, post_mult, pre_eps, post_eps, comb_order)
    given = x, fn, scale, base, weights
    beyond = beyond_kernels(x.shape[-2], sinkhorn_iters, eps) or float(norm_eps) < SMALLEST_NORM_EPS
    plain = all(t is None or type(t) in (torch.Tensor, torch.nn.Parameter) for t in (*given, norm_weight))
    if plain and not beyond and implementation_for(implementation, "x", x) == "helion":
        if norm_weight is not None:
            given = x, fn.float() * norm_weight.float(), scale, base, weights
        floats = eps, norm_eps, post_mult, eps if pre_eps is None else pre_eps, post_eps
        options = sinkhorn_iters, *map(float, floats), comb_order, precision, eps_outside
        if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in given):
            residual, *found = torch_op.HcSite.apply(*given, *options)
        else:
            residual, found = x, torch_op.call(*given, *options)
        return Crossing(*found[:4], residual)
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
