"""The torch operators of hc_site, for calls that its kernels compute; others are made of its parts.

`helion_sinkhorn::hc_site` returns (y, pre, post, comb, mixes, norms): y is collapsed by `weights`, or by pre
where they are None, and normalised where y_norm_weight is given; mixes (..., n^2 + 2n) and norms (..., 2) are
what the backward takes (docs/mhc.md), and carry no gradient.  `hc_site_backward` returns (dx, dfn, dbase and
dscale in one tensor, dweights, the gradient of y_norm_weight).  With `own` the weights are pre: the mixes
receive their gradient, and dweights is an empty tensor.  So is each result that is not `wanted`.
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.split.torch_op import of_parameters
from helion_sinkhorn.runtime import own_gradient
from helion_sinkhorn.runtime.gradients import no_forward_mode, with_signature
from helion_sinkhorn.runtime.tokens import roles
from helion_sinkhorn.runtime.torch_op import (
    Implementations,
    apply_directly,
    define,
    differentiable,
    differentiates,
    last,
    needs_gradient,
)
from helion_sinkhorn.runtime.wanted import cast, filled, only

FORWARD, BACKWARD = "hc_site", "hc_site_backward"
CONSTANTS = (
    "int n_iters, float eps, float norm_eps, float post_mult, float pre_eps, float post_eps, str comb_order, "
    "str precision, bool eps_outside, float y_norm_eps"
)
implementations = Implementations("helion_sinkhorn.ops.mhc.site.launch")


def forward(x, fn, scale, base, weights, y_norm_weight, *options, **out):
    """(y, pre, post, comb, mixes, norms)."""
    if x.numel() == 0:
        return tuple(t.zero_() for t in empty_results(x))
    site = SiteParameters(fn, scale, base, y_norm_weight=y_norm_weight)
    with implementations.launching(x) as launch:
        return launch.forward(x, site, weights, SiteOptions(*options), **out)


def backward(dresidual, dy, dpre, dpost, dcomb, x, fn, scale, base, weights, *arguments, into=None):
    """(dx, dfn, dbase and dscale, dweights, the gradient of y_norm_weight).

    If `into` is given, dx is written into it; it may be dresidual.
    """
    upstream = SiteGradients(dresidual, dy, dpre, dpost, dcomb)
    if x.numel() == 0:
        empty = _empty_gradients(*upstream, x, fn, scale, base, weights, *arguments)
        return tuple(t.zero_() for t in empty)
    y_norm_weight, mixes, norms, own, *options, wanted = arguments
    site = SiteParameters(fn, scale, base, y_norm_weight=y_norm_weight)
    kept = Kept(x, site, weights, mixes, norms, own)
    with implementations.launching(x) as launch:
        made = launch.backward(upstream, kept, SiteOptions(*options), wanted=wanted, into=into)
    return filled(made, (x, fn, base, weights, base))


def empty_results(x, *arguments):
    """Tensors without values of the results' shapes and dtypes."""
    n, columns = x.shape[-2:]
    lead, m = x.shape[:-2], n * n + 2 * n
    coefficients = ((n,), (n,), (n, n), (m,), (2,))
    y = x.new_empty(*lead, columns)
    return y, *(x.new_empty(*lead, *shape, dtype=torch.float32) for shape in coefficients)


def _empty_gradients(dresidual, dy, dpre, dpost, dcomb, x, fn, scale, base, weights, y_norm_weight, *rest):
    _, _, own, *_, wanted = rest
    single = torch.float32
    sums = x.new_empty(base.size(0) + 3, dtype=single)
    dweights = None if own or dy is None else weights.new_empty(weights.shape)
    made = (
        x.new_empty(x.shape),
        fn.new_empty(fn.shape, dtype=single),
        sums,
        dweights,
        of_norm(x, dy, y_norm_weight),
    )
    return filled(only(made, wanted), (x, fn, base, weights, base))


def of_norm(x, dy, y_norm_weight):
    """Memory for the gradient of y_norm_weight, if there is such a weight."""
    return None if dy is None or y_norm_weight is None else x.new_empty(x.size(-1), dtype=torch.float32)


def _keep(ctx, inputs, output):
    (weights, norm), results = inputs[4:6], output[-6:]
    ctx.own = weights is None
    ctx.save_for_backward(*inputs[:4], results[1] if ctx.own else weights, norm, *results[4:])
    ctx.constants = inputs[6:]
    ctx.mark_non_differentiable(*results[4:])
    ctx.set_materialize_grads(False)


def _gradient(ctx, dy, dpre, dpost, dcomb, *_):
    return _with_residual(ctx, None, dy, dpre, dpost, dcomb)


def _with_residual(ctx, dresidual, dy, dpre, dpost, dcomb, *_):
    into = dresidual if own_gradient.is_own(dresidual) else None
    upstream, given, needed = (dresidual, dy, dpre, dpost, dcomb), ctx.saved_tensors, ctx.needs_input_grad
    none = [None] * (5 + len(ctx.constants))
    if all(t is None for t in upstream[1:]):
        return upstream[0], *none
    _, fn, scale, base, _, norm, *_ = given
    run = apply_backward
    if into is not None and into.dtype == given[0].dtype and call_backward.is_eager(*upstream, *given[:6]):
        # saves half of what the backward would allocate; the program that writes an entry has read it before
        run = functools.partial(backward, into=into)
    of_y = dy is not None
    wanted = *needed[:2], any(needed[2:4]), needed[4] and of_y, needed[5] and of_y
    dx, dfn, sums, dweights, dnorm = only(run(*upstream, *given, ctx.own, *ctx.constants, wanted), wanted)
    of_scale_and_base = of_parameters(sums, needed[2:4], scale, base)
    return dx, cast(dfn, fn), *of_scale_and_base, dweights, cast(dnorm, norm), *none[5:]


call = define(
    FORWARD,
    f"(Tensor x, Tensor fn, Tensor scale, Tensor base, Tensor? weights, Tensor? y_norm_weight, {CONSTANTS})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward, empty_results, 6,
)  # fmt: skip
call_backward = define(
    BACKWARD,
    "(Tensor? dresidual, Tensor? dy, Tensor? dpre, Tensor? dpost, Tensor? dcomb, Tensor x, Tensor fn, "
    "Tensor scale, Tensor base, Tensor weights, Tensor? y_norm_weight, Tensor mixes, Tensor norms, bool own, "
    f"{CONSTANTS}, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    backward, _empty_gradients, 13,
)  # fmt: skip
differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_backward = last(BACKWARD, FORWARD, call_backward)


class Traced(torch.autograd.Function):
    """The operator with the streams as its first result, whose gradient its backward adds to dx.

    A registered operator must not return its argument, so this class is needed beside what `differentiable`
    makes.
    """

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(*arguments):
        return arguments[0].view_as(arguments[0]), *call(*arguments)

    setup_context = staticmethod(_keep)
    backward = staticmethod(_with_residual)


class HcSite(Traced):
    """Traced with a jvp that raises, for eager calls; Dynamo accepts no Function with a jvp."""

    jvp = staticmethod(no_forward_mode(FORWARD))


_apply = apply_directly(
    HcSite, call, lambda x, *rest: (x.view_as(x), *call.run(x, *rest)), FORWARD,
    otherwise=lambda x, *rest: (x, *call(x, *rest)),
)  # fmt: skip


def run(x, *arguments):
    """(y, pre, post, comb, residual) of the operator; the gradient of the residual comes back to it."""
    # in a dual level Dynamo leaves the call to PyTorch
    traced = torch.compiler.is_compiling() and not differentiates(x) and needs_gradient(x, *arguments[:5])
    residual, *results = (Traced.apply if traced else _apply)(x, *arguments)
    return *results[:4], residual


roles(FORWARD, "tppptp -> tttttt", empty_results)
roles(BACKWARD, "ttttttppptptt -> t++t+", _empty_gradients)
