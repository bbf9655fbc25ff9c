"""The torch operator of hc_boundary, for calls that its kernel computes; others are made of its parts.

`helion_sinkhorn::hc_boundary` returns (streams, y, pre, post, comb, mixes, norms): the new streams, and of
them what `helion_sinkhorn::hc_site` returns.  `hc_boundary_backward` returns (df, dx, dpost, dcomb, dfn,
dbase and dscale one behind the other, dweights), the last empty where y has no gradient; which launches make
them, boundary.backward decides.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.post import torch_op as of_post
from helion_sinkhorn.ops.mhc.site import torch_op as of_site
from helion_sinkhorn.runtime.pieces import computing
from helion_sinkhorn.runtime.tokens import roles
from helion_sinkhorn.runtime.torch_op import (
    define,
    differentiable,
    differentiates,
    last,
    on_device,
)

FORWARD, BACKWARD = "hc_boundary", "hc_boundary_backward"


@functools.cache
def _launch():
    """The launcher, imported by the first call that needs it."""
    from helion_sinkhorn.ops.mhc.site.boundary import launch

    return launch


@functools.cache
def _launch_backward():
    """The launcher of the backward, likewise."""
    from helion_sinkhorn.ops.mhc.site.boundary.backward import launch

    return launch


def forward(f, x, *arguments):
    """(streams, y, pre, post, comb, mixes, norms)."""
    if x.numel() == 0:
        return tuple(t.zero_() for t in _empty_results(f, x, *arguments))
    with on_device(x):
        return _launch().forward(f, x, *arguments)


def _empty_results(f, x, post, comb, bias, weights, fn, scale, base, *constants):
    return x.new_empty(x.shape), *of_site.empty_results(x, fn, scale, base, weights, *constants)


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:9], output[0], *output[5:])
    ctx.constants = inputs[9:]
    ctx.mark_non_differentiable(*output[5:])
    ctx.set_materialize_grads(False)


def backward(dstreams, dy, dpre, dpost, dcomb, f, x, post, comb, bias, *given):
    """(df, dx, dpost, dcomb, dfn, dbase and dscale, dweights)."""
    upstream, kept, constants = (dstreams, dy, dpre, dpost, dcomb), given[:7], given[7:]
    if x.numel() == 0:
        empty = _empty_gradients(*upstream, f, x, post, comb, bias, *given)
        return tuple(t.zero_() for t in empty)
    with on_device(x):
        return _launch_backward().backward(upstream, (f, x, post, comb, *kept), bias, *constants)


def _empty_gradients(dstreams, dy, dpre, dpost, dcomb, f, x, post, comb, bias, weights, fn, scale, base, *_):
    sums = x.new_empty(base.size(0) + 3, dtype=torch.float32)
    dweights = weights.new_empty(0 if dy is None else weights.shape)
    of_update = (t.new_empty(t.shape) for t in (f, x, post, comb))
    return *of_update, fn.new_empty(fn.shape, dtype=torch.float32), sums, dweights


def _gradient(ctx, *upstream):
    upstream = upstream[:5]
    f, x, post, comb, bias, *site, streams, mixes, norms = ctx.saved_tensors
    if all(t is None for t in upstream):
        return (None,) * (9 + len(ctx.constants))
    wanted = bias is not None and ctx.needs_input_grad[4]
    # as in hc_post: summed for the bias before df is rounded
    update = f.to(computing(x.dtype)) if wanted else f, x, post, comb
    if all(t is None for t in upstream[1:]):
        # nothing comes back through the collapse and the projection
        given = upstream[0], *update
        run = of_post.HcPostBackward.apply if differentiates(*given) else of_post.call_backward
        df, *of_update = run(*given, bias, SiteOptions(*ctx.constants).comb_order, "helion")
        made = [None] * 4
    else:
        given = *update, bias, *site, streams, mixes, norms
        there = [t for t in (*upstream, *given) if t is not None]
        run = HcBoundaryBackward.apply if differentiates(*there) else call_backward
        df, *of_update, dfn, sums, dweights = run(*upstream, *given, *ctx.constants)
        made = None if upstream[1] is None else dweights, *of_site.of_parameters(dfn, sums, *site[1:])
    dbias = of_post.gradient_of_bias(df).to(bias.dtype) if wanted else None
    return df.to(f.dtype), *of_update, dbias, *made, *[None] * len(ctx.constants)


call = define(
    FORWARD,
    "(Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, Tensor weights, Tensor fn, Tensor scale, "
    f"Tensor base, {of_site.CONSTANTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward, _empty_results, 9,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor? dstreams, Tensor? dy, Tensor? dpre, Tensor? dpost, Tensor? dcomb, Tensor f, Tensor x, "
    "Tensor post, Tensor comb, Tensor? bias, Tensor weights, Tensor fn, Tensor scale, Tensor base, "
    f"Tensor streams, Tensor mixes, Tensor norms, {of_site.CONSTANTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 17,
)  # fmt: skip
HcBoundary = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
HcBoundaryBackward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "ttttptppp -> ttttttt", _empty_results)
roles(BACKWARD, "tttttttttptpppttt -> tttt++t", _empty_gradients)
