"""The torch operator of hc_boundary, for calls that its kernel computes; others are made of its parts.

`helion_sinkhorn::hc_boundary` returns (streams, y, pre, post, comb, mixes, norms): the new streams, and what
`helion_sinkhorn::hc_site` makes of them.  `hc_boundary_backward` returns (df, dx, dpost, dcomb, dfn, dbase
and dscale in one tensor, dweights, the gradient of y_norm_weight).  Those that are not `wanted` are empty
tensors, and so is dweights with `own`, as in hc_site.  boundary.launch and boundary.backward decide which
launches make them.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.post import torch_op as of_post
from helion_sinkhorn.ops.mhc.site import torch_op as of_site
from helion_sinkhorn.ops.mhc.split.torch_op import of_parameters
from helion_sinkhorn.runtime import own_gradient
from helion_sinkhorn.runtime.tokens import roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.wanted import cast, filled, only

FORWARD, BACKWARD = "hc_boundary", "hc_boundary_backward"
implementations = Implementations("helion_sinkhorn.ops.mhc.site.boundary.launch")
backwards = Implementations("helion_sinkhorn.ops.mhc.site.boundary.backward.ways")


def forward(f, x, *arguments, **out):
    """(streams, y, pre, post, comb, mixes, norms)."""
    if x.numel() == 0:
        return tuple(t.zero_() for t in _empty_results(f, x))
    post, comb, bias, weights, fn, scale, base, y_norm_weight, *options = arguments
    site = SiteParameters(fn, scale, base, y_norm_weight=y_norm_weight)
    with implementations.launching(x) as launch:
        return launch.forward(Update(f, x, post, comb, bias), weights, site, SiteOptions(*options), **out)


def _empty_results(f, x, *arguments):
    return x.new_empty(x.shape), *of_site.empty_results(x)


def _keep(ctx, inputs, output):
    ctx.own = inputs[5] is None
    weights = output[2] if ctx.own else inputs[5]
    ctx.save_for_backward(*inputs[:5], weights, *inputs[6:10], output[0], *output[5:])
    ctx.constants = inputs[10:]
    ctx.mark_non_differentiable(*output[5:])
    ctx.set_materialize_grads(False)


def backward(dstreams, dy, dpre, dpost, dcomb, f, x, post, comb, bias, *given, over=False):
    """(df, dx, dpost, dcomb, dfn, dbase and dscale, dweights, the gradient of y_norm_weight).

    `over` allows to write over dstreams.
    """
    upstream = SiteGradients(dstreams, dy, dpre, dpost, dcomb)
    if x.numel() == 0:
        empty = _empty_gradients(*upstream, f, x, post, comb, bias, *given)
        return tuple(t.zero_() for t in empty)
    weights, fn, scale, base, y_norm_weight, streams, mixes, norms, own, *options, wanted = given
    site = SiteParameters(fn, scale, base, y_norm_weight=y_norm_weight)
    kept = Kept(streams, site, weights, mixes, norms, own)
    update, options = Update(f, x, post, comb, bias), SiteOptions(*options)
    with backwards.launching(x) as ways:
        made = ways.backward(ways.Asked(upstream, update, kept, options, wanted, over))
    return filled(made, (f, x, post, comb, fn, base, weights, base))


def _empty_gradients(
    dstreams, dy, dpre, dpost, dcomb, f, x, post, comb, bias, weights, fn, scale, base, *rest
):
    sums = x.new_empty(base.size(0) + 3, dtype=torch.float32)
    of_update = (t.new_empty(t.shape) for t in (f, x, post, comb))
    y_norm_weight, _, _, _, own, *_ = rest
    dweights = None if own or dy is None else weights.new_empty(weights.shape)
    of_norm = of_site.of_norm(x, dy, y_norm_weight)
    made = *of_update, fn.new_empty(fn.shape, dtype=torch.float32), sums, dweights, of_norm
    return filled(only(made, rest[-1]), (f, x, post, comb, fn, base, weights, base))


def _gradient(ctx, dstreams, *others):
    over = own_gradient.is_own(dstreams)
    upstream = dstreams, *others[:4]
    f, x, post, comb, bias, *site, streams, mixes, norms = ctx.saved_tensors
    if all(t is None for t in upstream):
        return (None,) * (10 + len(ctx.constants))
    needed = ctx.needs_input_grad
    of_update, given_f = of_post.with_bias(needed, f, x)
    update = given_f, x, post, comb
    if all(t is None for t in upstream[1:]):
        # no gradient comes back through the collapse and the projection
        given = upstream[0], *update
        order = SiteOptions(*ctx.constants).comb_order
        gradients = of_post.taken_back(*given, bias, order, "helion", of_update)
        made = [None] * 5
    else:
        given = *update, bias, *site, streams, mixes, norms
        run = apply_backward
        if over and call_backward.is_eager(*upstream, *given):
            run = functools.partial(backward, over=True)
        of_y = upstream[1] is not None
        wanted = *of_update, needed[6], any(needed[7:9]), needed[5] and of_y, needed[9] and of_y
        made = run(*upstream, *given, ctx.own, *ctx.constants, wanted)
        *gradients, dfn, sums, dweights, dnorm = only(made, wanted)
        _, fn, scale, base, norm = site
        made = dweights, cast(dfn, fn), *of_parameters(sums, needed[7:9], scale, base), cast(dnorm, norm)
    df, dx, *rest = of_post.of_update(gradients, needed, f, bias)
    own_gradient.note(dx)
    return df, dx, *rest, *made, *[None] * len(ctx.constants)


call = define(
    FORWARD,
    "(Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, Tensor? weights, Tensor fn, Tensor scale, "
    f"Tensor base, Tensor? y_norm_weight, {of_site.CONSTANTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward, _empty_results, 10,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor? dstreams, Tensor? dy, Tensor? dpre, Tensor? dpost, Tensor? dcomb, Tensor f, Tensor x, "
    "Tensor post, Tensor comb, Tensor? bias, Tensor weights, Tensor fn, Tensor scale, Tensor base, "
    "Tensor? y_norm_weight, Tensor streams, Tensor mixes, Tensor norms, "
    f"bool own, {of_site.CONSTANTS}, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 18,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_backward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "ttttptpppp -> ttttttt", _empty_results)
roles(BACKWARD, "tttttttttptppppttt -> tttt++t+", _empty_gradients)
