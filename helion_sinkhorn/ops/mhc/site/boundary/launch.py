"""From tensors to the launches of hc_boundary's forward: one pass over the streams, or its parts."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.mhc.mixes.launch import Partials
from helion_sinkhorn.ops.mhc.options import SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.out import NONE, Out, room
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.pre.normed.launch import normalise
from helion_sinkhorn.ops.mhc.pre.quantized import launch as quantized_launch
from helion_sinkhorn.ops.mhc.prepared import prepared
from helion_sinkhorn.ops.mhc.site import launch as site_launch
from helion_sinkhorn.ops.mhc.site.boundary import space
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS, WIDTH, chunk_of
from helion_sinkhorn.ops.mhc.site.finish import launch as finish
from helion_sinkhorn.ops.mhc.site.finish.launch import FINISH
from helion_sinkhorn.ops.mhc.site.launch import Tensors, call_for, coefficients, collapsed
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.ops.mhc.streams import evenly
from helion_sinkhorn.runtime.kernel import Choice, Kernel
from helion_sinkhorn.runtime.launch import NO_CHOICES, Choices, Chosen, launch
from helion_sinkhorn.runtime.space import power_of_two
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.views import flattened, flattened_streams, parameter, placed
from helion_sinkhorn.runtime.wanted import Some

SPLIT, FORWARD = "hc_boundary_split", "hc_boundary_forward"
LAYOUT = "side by side"
"""The parts as SPLIT has them, for `prepare`."""
BODIES = "helion_sinkhorn.ops.mhc.site.boundary.kernels"


def split_facts(chosen: Chosen, call: SiteCall) -> tuple[Any, ...]:
    mixes = call.mixes
    return mixes.m, call.n, call.columns, WIDTH, power_of_two(call.n), mixes.parts


def forward_facts(chosen: Chosen, call: SiteCall, precision: str, comb_order: str) -> tuple[Any, ...]:
    mixes, chunk = call.mixes, chunk_of(call)
    return (
        mixes.m, call.n, call.columns, -(-call.columns // chunk), chunk, WIDTH,
        mixes.block_m, mixes.x_parts, mixes.parts, comb_order == "oi", chosen.reciprocal, chosen.interpret,
    )  # fmt: skip


KERNELS = {
    name: Kernel(
        name,
        f"{BODIES}:{name}",
        SiteCall,
        *own,
        traits=frozenset({"splits", "in place", "overlaps"}),
        size=size,
    )
    # own: the default, the space and the facts
    for name, size, *own in (
        (SPLIT, lambda call: call.mixes.m, space.split_default, space.split_space, split_facts),
        (FORWARD, None, space.forward_default, space.forward_space, forward_facts),
    )
} | {FINISH: finish.KERNEL}


def forward(
    update: Update,
    weights: Some,
    site: SiteParameters,
    options: SiteOptions,
    choices: Choices = NO_CHOICES,
    out: Out = NONE,
) -> Tensors:
    """(streams, y, pre, post, comb, mixes, norms); the contract is torch_op's.

    The site has no comb, and its norm_weight is in fn.
    In one pass over the streams where registers hold them all, or else in parts.  H200, 8192 tokens of
    4 x 4096: in one pass 279 us, in parts 330.

    `choices` of KERNELS, by name, replace the stored ones.  The results are those of `out`, which may be
    arguments: each program reads all streams of its columns before it writes them, and coefficients are
    written when nothing reads the old ones any more.
    """
    x, norm = update.x, site.y_norm_weight
    n, columns = x.shape[-2:]
    if n > MOST_STREAMS:
        streams = post_launch.forward(update, options.comb_order, out=out.residual)
        if out.mean is not None:
            collapsed(streams, evenly(streams), None, 0.0, out.mean)
        return streams, *site_launch.forward(streams, site, weights, options, out)
    call = call_for(n, columns, x.dtype, options.precision)
    split = None if choices else prepared(site.fn, LAYOUT, call.mixes.parts)
    if split is None:
        split = split_of(parameter(site.fn), call, choices.get(SPLIT))
    chosen = choices.get(FORWARD)
    streams, y, made = one_pass(update, weights, split, call, options.comb_order, chosen, out)
    if norm is not None and (FINISH in choices or finish.is_short(x)):
        return streams, *finish.run(made, site, streams, y, call, options, out, choices.get(FINISH))
    if y is not None and norm is not None:
        normalise(y, norm, options.y_norm_eps, out.quantized)
    elif y is not None:
        quantized_launch.write(y, out.quantized)
    coeffs = coefficients(made, x.shape[:-2], site, n, call.mixes, options, out)
    if y is None:
        y = collapsed(streams, coeffs[0], norm, options.y_norm_eps, out.y, out.quantized)
    return streams, y, *coeffs


def split_shape(call: SiteCall) -> tuple[int, int, int]:
    """(M, parts, size): WIDTH entries for each block of columns and each place of a stream."""
    blocks, places = -(-call.columns // WIDTH), power_of_two(call.n)
    return call.mixes.m, call.mixes.parts, blocks * places * WIDTH


def split_of(fn: torch.Tensor, call: SiteCall, choice: Choice | None = None) -> torch.Tensor:
    """The bfloat16 parts of fn (M, n C), WIDTH columns of every stream side by side."""
    made = fn.new_empty(split_shape(call), dtype=torch.bfloat16)
    # fn has n (n + 2) rows and n C columns, so the layouts decide the call
    launch(KERNELS[SPLIT], call, (fn, made), batch=len(fn), choice=choice)
    return made


def one_pass(
    update: Update,
    weights: Some,
    split: torch.Tensor,
    call: SiteCall,
    comb_order: str,
    choice: Choice | None = None,
    out: Out = NONE,
) -> tuple[torch.Tensor, Some, Partials]:
    """(streams (..., n, C), y (..., C), the partial sums of the streams' projection).

    Without weights y is None.

    streams and y are made in these shapes: of several results autograd lets nobody change a view in place.
    """
    f, x, post, comb, bias = update
    n, columns = x.shape[-2:]
    streams, y = room(out.residual, x, x.shape, x.dtype), None
    if weights is not None:
        y, weights = room(out.y, x, (*x.shape[:-2], columns), x.dtype), flattened(weights, 1)
    f, x, post, comb = flattened(f, 1), flattened_streams(x), flattened(post, 1), flattened(comb, 2)
    bias, tokens = None if bias is None else placed(bias), x.size(0)
    splits = -(-columns // chunk_of(call))
    products = x.new_empty((tokens, splits, n * (n + 2)), dtype=torch.float32)
    partials = Partials(products, x.new_empty((tokens, splits), dtype=torch.float32))
    ys = (None if t is None else t.view(tokens, columns) for t in (y, out.mean))
    rows = streams.view(tokens, n, columns), *ys
    tensors = f, x, post, comb, bias, weights, split, *rows, *partials
    launch(KERNELS[FORWARD], call, tensors, call.precision, comb_order, batch=tokens, choice=choice)
    return streams, y, partials
