"""From tensors to the launches of hc_boundary's backward: one pass over the streams, or that of its parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.site import launch as site_launch
from helion_sinkhorn.ops.mhc.site.boundary.backward.space import (
    CHUNK,
    backward_default,
    backward_space,
    projection_default,
    projection_space,
    sums_default,
    sums_space,
)
from helion_sinkhorn.ops.mhc.site.boundary.launch import split_of
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS, WIDTH
from helion_sinkhorn.ops.mhc.site.launch import Tensors, call_for
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.split import launch as split_launch
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, chosen_for, launch
from helion_sinkhorn.runtime.views import flattened, parameter, placed
from helion_sinkhorn.runtime.wanted import Some, room_for

BACKWARD, SUMS, PROJECTION = "hc_boundary_backward", "hc_boundary_sums", "hc_boundary_projection"
EVERY = (True,) * 8
LARGEST = 1 << 62
"""A batch beyond every tuned one: look-up answers with the largest."""
BODIES = "helion_sinkhorn.ops.mhc.site.boundary.backward.kernels"


def backward_facts(
    chosen: Chosen, call: SiteCall, precision: str, comb_order: str, together: bool
) -> tuple[Any, ...]:
    """What the body of BACKWARD takes after its tensors."""
    mixes = call.mixes
    return (
        mixes.m, call.n, call.columns, -(-call.columns // CHUNK), CHUNK, WIDTH, mixes.block_m, mixes.dx_parts,
        together, comb_order == "oi", chosen.reciprocal, chosen.interpret,
    )  # fmt: skip


def sums_facts(chosen: Chosen, call: SiteCall, *values: Any) -> tuple[Any, ...]:
    """The same of SUMS."""
    return (-(-call.columns // CHUNK),)


def projection_facts(chosen: Chosen, call: SiteCall, precision: str, shares: int) -> tuple[Any, ...]:
    """The same of PROJECTION."""
    mixes = call.mixes
    return (
        mixes.m, call.n, call.columns, shares, mixes_launch.SHARE, mixes.block_m, mixes.x_parts, mixes.parts,
        chosen.interpret,
    )  # fmt: skip


KERNELS = {
    name: Kernel(name, f"{BODIES}:{name}", SiteCall, default, space, facts, traits=frozenset(traits))
    for name, default, space, facts, traits in (
        (BACKWARD, backward_default, backward_space, backward_facts, ("splits",)),
        (SUMS, sums_default, sums_space, sums_facts, ()),
        (PROJECTION, projection_default, projection_space, projection_facts, ("splits",)),
    )
}


def backward(
    upstream: tuple[Some, ...],
    given: Tensors,
    bias: Some,
    own: bool,
    *constants: object,
    wanted: Sequence[bool] = EVERY,
    over: bool = False,
) -> tuple[Some, ...]:
    """(df, dx, dpost, dcomb, dfn, dbase and dscale, dweights, the gradient of y_norm_weight).

    Args:
        upstream: (dstreams, dy, dpre, dpost, dcomb), each may be None.
        given: (f, x, post, comb, weights, fn, scale, base, y_norm_weight, streams, mixes, norms).
        own: whether the weights are the site's, as in V4: their gradient goes on to the mixes.
        wanted: which of the results; None stands for each other.
        over: whether dstreams may be written over.
    """
    x = given[1]
    call = call_for(*x.shape[-2:], x.dtype, SiteOptions(*constants).precision)
    if not own and x.size(-2) <= MOST_STREAMS and is_measured(call, x):
        return in_one_pass(upstream, given, bias, own, *constants, wanted=wanted)
    return in_parts(upstream, given, bias, own, *constants, wanted=wanted, over=over)


def is_measured(call: SiteCall, x: torch.Tensor) -> bool:
    """Whether all kernels of the one pass were timed for this call on this device: otherwise none runs.

    The largest timed batch answers for all: one pass rounds dx elsewhere than the parts, and a token's
    gradients must not depend on how many others there are.
    """
    return all(chosen_for(kernel, call, LARGEST, x).measured for kernel in KERNELS.values())


def in_parts(
    upstream: tuple[Some, ...],
    given: Tensors,
    bias: Some,
    own: bool,
    *constants: object,
    wanted: Sequence[bool] = EVERY,
    over: bool = False,
) -> tuple[Some, ...]:
    """The backward of hc_site, and then that of hc_post; arguments and results as of `backward`."""
    f, x, post, comb, weights, fn, scale, base, y_norm_weight, streams, mixes, norms = given
    site = streams, fn, scale, base, weights, y_norm_weight, mixes, norms, own
    # a df that is summed for the bias comes of a gradient that nothing has rounded yet
    dtype = torch.float32 if f.dtype.itemsize > x.dtype.itemsize else x.dtype
    of_update, of_site = wanted[:4], (any(wanted[:4]), *wanted[4:])
    into = upstream[0] if over and upstream[0].dtype == dtype else None
    given = *upstream, *site, *constants
    dstreams, *made = site_launch.backward(*given, dtype=dtype, wanted=of_site, into=into)
    if dstreams is None:
        return *[None] * 4, *made
    update = f, x, post, comb, bias, SiteOptions(*constants).comb_order
    return *post_launch.backward(dstreams, *update, of_update, over=True), *made


def in_one_pass(
    upstream: tuple[Some, ...],
    given: Tensors,
    bias: Some,
    own: bool,
    *constants: object,
    wanted: Sequence[bool] = EVERY,
    choices: Choices = NO_CHOICES,
) -> tuple[Some, ...]:
    """The same with one reading of the streams for everything but dfn; arguments as of `backward`.

    `choices` of KERNELS, by name, take the place of what is served.
    """
    dstreams, dy, *of_coefficients = upstream
    f, x, post, comb, weights, fn, scale, base, y_norm_weight, streams, mixes, norms = given
    values, n = SiteOptions(*constants), x.size(-2)
    call = call_for(*x.shape[-2:], x.dtype, values.precision)
    of_mixes = call.mixes
    *of_update, of_fn, of_sums, of_weights, of_norm = wanted
    stored, of_y, dweights, dnorm = flattened(streams, 2), any(of_update), None, None
    first = own or y_norm_weight is not None
    if first:
        asked = of_y, of_weights or (own and any(wanted[:6])), of_norm
        dy, dweights, dnorm = site_launch.collapse_gradients(
            dy, stored, flattened(weights, 1), y_norm_weight, values.y_norm_eps, call, None, asked
        )
    if own and dweights is not None:
        dpre, *rest = of_coefficients
        of_coefficients = dweights if dpre is None else dpre.reshape(-1, n) + dweights, *rest
        dweights = None
    in_pass = *of_update, of_weights and dy is not None and not first
    needed = of_fn or any(in_pass), of_sums
    dmixes, sums = split_launch.backward(*of_coefficients, mixes, scale, base, n, *values.of_split, needed)
    if dmixes is None:
        return *[None] * 5, sums, view_as(dweights, weights), dnorm
    g, along = mixes_launch.upstream(*(flattened(t, 1) for t in (dmixes, mixes, norms)), of_mixes)
    tensors = (
        None if dstreams is None else flattened(dstreams, 2), None if dy is None else flattened(dy, 1),
        g, along, stored, parts_of_fn(parameter(fn), call, stored, choices), flattened(f, 1), flattened(x, 2),
        None if bias is None else placed(bias), flattened(post, 1), flattened(comb, 2), flattened(weights, 1),
    )  # fmt: skip
    made = gradients(tensors, call, values.comb_order, in_pass, choices)
    dfn = projection(g, stored, call, choices.get(PROJECTION)) if of_fn else None
    *made, of_collapse = (view_as(t, like) for t, like in zip(made, (f, x, post, comb, weights), strict=True))
    return *made, dfn, sums, view_as(dweights, weights) if first else of_collapse, dnorm


def view_as(t: Some, like: torch.Tensor) -> Some:
    """A result in the shape of what it is the gradient of."""
    return None if t is None else t.view(like.shape)


def parts_of_fn(
    fn: torch.Tensor, call: SiteCall, streams: torch.Tensor, choices: Choices = NO_CHOICES
) -> torch.Tensor:
    """The parts of fn as `one_pass` takes them for streams (T, n, C), with what is chosen for its kernel."""
    choice = choices.get(BACKWARD) or chosen_for(KERNELS[BACKWARD], call, len(streams), streams)
    if dict(choice.variant)["together"]:
        return split_of(fn, call)
    return mixes_launch.split(fn, call.mixes).view(call.mixes.m, call.mixes.parts, call.n, call.columns)


def gradients(
    given: tuple[Some, ...],
    call: SiteCall,
    comb_order: str,
    wanted: Sequence[bool] = (True,) * 5,
    choices: Choices = NO_CHOICES,
) -> tuple[Some, ...]:
    """(df, dx, dpost, dcomb, dweights) of the tensors that `one_pass` takes, tokens one behind the other."""
    if not any(wanted):
        return (None,) * 5
    *_, post, comb, weights = given
    df, dx, *partials = one_pass(*given, call, comb_order, wanted, choices.get(BACKWARD))
    dpost, dcomb, dweights = summed(*partials, call, (post, comb, weights), choices.get(SUMS))
    return df, dx, dpost, None if dcomb is None else dcomb.view(comb.shape), dweights


def one_pass(
    dstreams: torch.Tensor | None,
    dy: torch.Tensor | None,
    g: torch.Tensor,
    along: torch.Tensor,
    streams: torch.Tensor,
    split: torch.Tensor,
    f: torch.Tensor,
    x: torch.Tensor,
    bias: torch.Tensor | None,
    post: torch.Tensor,
    comb: torch.Tensor,
    weights: torch.Tensor,
    call: SiteCall,
    comb_order: str,
    wanted: Sequence[bool] = (True,) * 5,
    choice: Choice | None = None,
) -> tuple[Some, ...]:
    """(df, dx, of_post, of_comb, of_weights), the last three as the kernel has them.

    Each unless it is not wanted.

    split is what `parts_of_fn` makes: its layout decides how products with fn are made, and not the config,
    since the default may take the place of one that is refused.
    """
    tokens, n, columns = x.shape
    splits = -(-columns // CHUNK)
    sizes = n, n * n, n
    partials = [
        x.new_empty((tokens, splits, size), dtype=torch.float32) if w else None
        for size, w in zip(sizes, wanted[2:], strict=True)
    ]
    made = *room_for((f, x), wanted[:2]), *partials
    tensors = dstreams, dy, g, along, streams, split, f, x, bias, post, comb, weights, *made
    values = call.precision, comb_order, split.dim() == 3
    launch(KERNELS[BACKWARD], call, tensors, *values, batch=tokens, choice=choice)
    return made


def summed(
    of_post: Some,
    of_comb: Some,
    of_weights: Some,
    call: SiteCall,
    like: Tensors,
    choice: Choice | None = None,
) -> tuple[Some, ...]:
    """(dpost (T, n), dcomb (T, n n), dweights (T, n)) of the dtypes of `like`, of the partial sums given."""
    tokens = len(like[0])
    partials = of_post, of_comb, of_weights
    made = tuple(
        None if p is None else p.new_empty((tokens, p.size(2)), dtype=t.dtype)
        for p, t in zip(partials, like, strict=True)
    )
    if any(p is not None for p in partials):
        launch(KERNELS[SUMS], call, (*partials, *made), call, batch=tokens, choice=choice)
    return made


def projection(
    g: torch.Tensor, streams: torch.Tensor, call: SiteCall, choice: Choice | None = None
) -> torch.Tensor:
    """dfn (M, n C) in float32, for g (T, parts, M) and streams (T, n, C)."""
    tokens, n, columns = streams.shape
    kernel, m = KERNELS[PROJECTION], call.mixes.m
    shares = dict((choice or chosen_for(kernel, call, tokens, streams)).variant)["shares"]
    sums = streams.new_empty((shares, m, n, columns), dtype=torch.float32)
    launch(kernel, call, (g, streams, sums), call.precision, shares, batch=tokens, choice=choice)
    return sums.sum(0).view(m, n * columns)
