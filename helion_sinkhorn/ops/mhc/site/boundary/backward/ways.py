"""The ways to compute hc_boundary's backward: one pass over the streams, two passes, or its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.pre.normed import launch as normed_launch
from helion_sinkhorn.ops.mhc.site import launch as site_launch
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.mhc.site.launch import call_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split_launch
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, chosen_for
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.views import flattened, parameter, placed
from helion_sinkhorn.runtime.wanted import Some

SECOND_FROM = 7168
"""Columns from which a first pass and then one over everything is faster than the parts.

H200, us of 8192 tokens of V4 and V4.1 with a norm: 4 x 4096 columns 834 and 832, in parts 777 and 778;
4 x 7168 1364 and 1367, in parts 1380 and 1375.
"""
LARGEST = 1 << 62
"""A batch larger than every tuned one, for which the look-up finds the config of the largest."""


class Asked(NamedTuple):
    """The arguments of a backward, and which results are wanted."""

    upstream: SiteGradients
    update: Update
    kept: Kept
    options: SiteOptions
    wanted: Sequence[bool] = (True,) * 8
    """Which results are wanted; the others are None."""
    over: bool = False
    """Whether dstreams may be written over."""

    @property
    def call(self) -> SiteCall:
        x = self.update.x
        return call_for(*x.shape[-2:], x.dtype, self.options.precision)

    @property
    def is_second(self) -> bool:
        """Whether a pass over the streams and dy comes before the one over everything."""
        normed = self.kept.site.y_norm_weight is not None
        return self.upstream.dy is not None and (self.kept.own or normed)


def backward(asked: Asked) -> tuple[Some, ...]:
    """(df, dx, dpost, dcomb, dfn, dbase and dscale, dweights, the gradient of y_norm_weight)."""
    x = asked.update.x
    if x.size(-2) <= MOST_STREAMS and is_faster(asked.call, x, asked.is_second):
        return in_one_pass(asked)
    return in_parts(asked)


def is_faster(call: SiteCall, x: torch.Tensor, second: bool) -> bool:
    """Whether the one pass, alone or second, is faster where all its kernels were timed on this device.

    The largest timed batch decides for every batch: one pass rounds dx at another place than the parts do,
    and a token's gradients must not depend on the number of tokens.
    """
    if second and call.columns < SECOND_FROM:
        return False
    names = launch.SECOND if second else launch.BACKWARD, launch.SUMS, launch.PROJECTION
    return all(chosen_for(launch.KERNELS[name], call, LARGEST, x).measured for name in names)


def in_parts(asked: Asked) -> tuple[Some, ...]:
    """The backward of hc_site, and then that of hc_post; the results are as in `backward`."""
    upstream, update, kept, options, wanted, over = asked
    dstreams, f, x = upstream.dstreams, update.f, update.x
    # where df is summed for the gradient of the bias, nothing may have rounded the gradient of the streams
    dtype = torch.float32 if f.dtype.itemsize > x.dtype.itemsize else x.dtype
    of_update, of_site = wanted[:4], (any(wanted[:4]), *wanted[4:])
    into = dstreams if over and dstreams.dtype == dtype else None
    dstreams, *made = site_launch.backward(upstream, kept, options, dtype, wanted=of_site, into=into)
    if dstreams is None:
        return *[None] * 4, *made
    return *post_launch.backward(dstreams, update, options.comb_order, of_update, over=True), *made


def in_one_pass(asked: Asked, choices: Choices = NO_CHOICES) -> tuple[Some, ...]:
    """The results of `backward`, with the streams read once for everything but dfn.

    Where the weights of the collapse are the site's own, or a norm follows it, they are read once more
    before.  `choices` of KERNELS, by name, replace the stored ones.
    """
    upstream, update, kept, options, wanted, over = asked
    f, x, post, comb, bias = update
    streams, site, weights, mixes, norms, own = kept
    dstreams, dy, of_coefficients = upstream.dstreams, upstream.dy, upstream.of_coefficients
    call, rows = asked.call, flattened(weights, 1)
    *of_update, of_fn, of_sums, of_weights, of_norm = wanted
    stored, dweights, dnorm, behind = flattened(streams, 2), None, None, None
    second = asked.is_second or (dy is not None and launch.SECOND in choices)
    if second:
        of_first = any(of_update), of_weights or (own and any(wanted[:6])), of_norm
        collapse = dy, stored, rows, site.y_norm_weight, options.y_norm_eps
        dweights, dnorm, behind = before_the_pass(*collapse, call, of_first)
    if own and dweights is not None:
        of_coefficients, dweights = of_coefficients.with_pre(dweights), None
    in_pass = *of_update, of_weights and dy is not None and not second
    needed = of_fn or any(in_pass), of_sums
    given = mixes, site.scale, site.base, options.of_split(call.n)
    dmixes, sums = split_launch.backward(of_coefficients, *given, needed)
    if dmixes is None:
        return *[None] * 5, sums, view_as(dweights, weights), dnorm
    projected = mixes_launch.upstream(*(flattened(t, 1) for t in (dmixes, mixes, norms)), call.mixes)
    into = dstreams if over and dstreams.dtype == x.dtype and wanted[1] else None
    kernel = launch.KERNELS[launch.SECOND if second else launch.BACKWARD]
    pass_of = launch.Pass(kernel, call, options.comb_order, behind, into=into)
    pass_of, together = pass_of.as_chosen(stored, choices)
    given = launch.Given(
        None if dstreams is None else flattened(dstreams, 2), None if dy is None else flattened(dy, 1),
        *projected, stored, launch.parts_of_fn(parameter(site.fn), call, together),
        flattened(f, 1), flattened(x, 2), None if bias is None else placed(bias),
        flattened(post, 1), flattened(comb, 2), rows,
    )  # fmt: skip
    made = launch.gradients(given, pass_of, in_pass, choices)
    dfn = launch.projection(projected.g, stored, call, choices.get(launch.PROJECTION)) if of_fn else None
    df, dx, *rest = made
    dpost, dcomb, of_collapse = (
        view_as(t, like) for t, like in zip(rest, (post, comb, weights), strict=True)
    )
    # memory that is written over is returned as it is, not as a view, whose other owners would be unknown
    # (`own_gradient`)
    dx = view_as(dx, x) if into is None else into
    dweights = view_as(dweights, weights) if second else of_collapse
    return view_as(df, f), dx, dpost, dcomb, dfn, sums, dweights, dnorm


def before_the_pass(
    dy: torch.Tensor,
    streams: torch.Tensor,
    weights: torch.Tensor,
    y_norm_weight: Some,
    eps: float,
    call: SiteCall,
    wanted: tuple[bool, bool, bool],
) -> tuple[Some, Some, tuple[torch.Tensor, torch.Tensor] | None]:
    """(dweights, the gradient of y_norm_weight, `Pass.norm`) from streams (T, n, C).

    `wanted` says which of three are needed: the factors of the norm's gradient, and the two gradients.
    """
    of_y, of_weights, of_norm = wanted
    if y_norm_weight is None:
        given = dy, streams, weights, None, eps, call, None, (False, of_weights, False)
        return site_launch.collapse_gradients(*given)[1], None, None
    dweights = torch.empty_like(weights) if of_weights else None
    factors = weights.new_empty((len(weights), 2), dtype=torch.float32) if of_y else None
    given = flattened(dy, 1), streams, weights, y_norm_weight, eps, (None, None, dweights, factors), of_norm
    dnorm = normed_launch.gradients(*given) if any(wanted) else None
    return dweights, dnorm, None if factors is None else (parameter(y_norm_weight), factors)


def view_as(t: Some, like: torch.Tensor) -> Some:
    """A result in the shape of the tensor whose gradient it is."""
    return None if t is None else t.view(like.shape)
