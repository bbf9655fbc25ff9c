"""The torch operator of hc_boundary, for calls that its kernel computes; others are made of its parts.

`helion_sinkhorn::hc_boundary` returns (streams, y, pre, post, comb, mixes, norms): the new streams, and of
them what `helion_sinkhorn::hc_site` returns.  Its backward is that of hc_site, and then that of hc_post.
"""

from __future__ import annotations

import functools

from helion_sinkhorn.ops.hc_post import torch_op as of_post
from helion_sinkhorn.ops.hc_site import torch_op as of_site
from helion_sinkhorn.ops.hc_site.constants import Constants
from helion_sinkhorn.runtime.pieces import computing
from helion_sinkhorn.runtime.torch_op import define, differentiable, differentiates, map_tokens, on_device

FORWARD = "hc_boundary"


@functools.cache
def _launch():
    """The launcher, and with it Helion, on the first call that needs it."""
    from helion_sinkhorn.ops.hc_site.boundary import launch

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


def _gradient(ctx, dstreams, dy, dpre, dpost, dcomb, *_):
    f, x, post, comb, bias, weights, fn, scale, base, streams, mixes, norms = ctx.saved_tensors
    upstream = dstreams, dy, dpre, dpost, dcomb
    if all(t is None for t in upstream):
        return (None,) * (9 + len(ctx.constants))
    site = streams, fn, scale, base, weights, mixes, norms
    dstreams, *of_site_parameters, dweights = of_site.gradients(upstream, site, False, ctx.constants)
    given = f, x, post, comb
    order = Constants(*ctx.constants).comb_order
    run = of_post.HcPostBackward.apply if differentiates(dstreams, *given) else of_post.call_backward
    df, *others = run(dstreams, *given, bias, order, "helion")
    wanted = bias is not None and ctx.needs_input_grad[4]
    dbias = of_post.gradient_of_bias(df, computing(x.dtype)).to(bias.dtype) if wanted else None
    return df, *others, dbias, dweights, *of_site_parameters, *[None] * len(ctx.constants)


call = define(
    FORWARD,
    "(Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, Tensor weights, Tensor fn, Tensor scale, "
    f"Tensor base, {of_site.CONSTANTS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward, _empty_results, 9,
)  # fmt: skip
HcBoundary = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
map_tokens(FORWARD, 9, (4, 6, 7, 8), _empty_results)
