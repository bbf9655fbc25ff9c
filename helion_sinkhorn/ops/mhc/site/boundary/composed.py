"""hc_boundary by its parts, for streams narrower than float32 and a bias that needs a gradient.

Between registered operators autograd rounds the gradient of the new streams to their dtype, and with it each
term of the sum over tokens that is the bias's gradient.  Here the gradient of the new streams stays in the
computing dtype until that sum is made.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad

from helion_sinkhorn.ops.mhc.mixes import torch_op as of_mixes
from helion_sinkhorn.ops.mhc.options import SiteOptions
from helion_sinkhorn.ops.mhc.post import torch_op as of_post
from helion_sinkhorn.ops.mhc.pre import torch_op as of_pre
from helion_sinkhorn.ops.mhc.pre.normed import torch_op as of_normed
from helion_sinkhorn.ops.mhc.split import torch_op as of_split
from helion_sinkhorn.ops.mhc.streams import for_projection
from helion_sinkhorn.runtime.gradients import with_signature
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.wanted import cast, only


def loses_digits(x: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether the gradient of the bias would be a sum of rounded terms that can be avoided.

    In a strict export it cannot: such an export keeps the gradients of operators, but not of an
    autograd.Function.
    """
    return (
        bias is not None
        and x.dtype != COMPUTING[x.dtype]
        and torch.is_grad_enabled()
        and bias.requires_grad
        and forward_ad._current_level < 0
        and not torch.compiler.is_exporting()
    )


def _sum(*terms):
    there = [t for t in terms if t is not None]
    return sum(there[1:], there[0]) if there else None


class Composed(torch.autograd.Function):
    """(streams, y, pre, post, comb, mixes, norms) from the arguments of `boundary.torch_op`."""

    generate_vmap_rule = True

    @staticmethod
    @with_signature
    def forward(*arguments):
        *update, weights, fn, scale, base, y_norm = arguments[:10]
        site, serves = SiteOptions(*arguments[10:-1]), arguments[-1]
        streams = of_post.call(*update, site.comb_order, serves)
        norm = site.norm_eps, site.eps_outside, site.precision
        mixes, norms = of_mixes.call(for_projection(streams), fn, *norm, serves)
        split = site.of_split(streams.size(-2))
        pre, post, comb = of_split.call(mixes, scale, base, *split, serves, mixes.dtype)
        given = streams, pre if weights is None else weights
        if y_norm is None:
            y = of_pre.call(*given, serves)
        else:
            y = of_normed.call(*given, y_norm, site.y_norm_eps, serves)
        return streams, y, pre, post, comb, mixes, norms

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs[:10], output[0], output[2], *output[5:])
        ctx.options = inputs[10:]
        ctx.mark_non_differentiable(*output[5:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, dstreams, dy, dpre, dpost, dcomb, *_):
        none = (None,) * (10 + len(ctx.options))
        if all(t is None for t in (dstreams, dy, dpre, dpost, dcomb)):
            return none
        f, x, post, comb, bias, weights, fn, scale, base, norm, streams, pre, mixes, norms = ctx.saved_tensors
        site, serves = SiteOptions(*ctx.options[:-1]), ctx.options[-1]
        wide = streams.to(COMPUTING[x.dtype])
        needed = ctx.needs_input_grad
        of_y = of_stream = dweights = dfn = dscale = dbase = dnorm = None
        if dy is not None:
            given = dy, wide, pre if weights is None else weights
            wanted = True, weights is None or needed[5], needed[9]
            if norm is None:
                of_y, dweights = only(of_pre.apply_backward(*given, serves, wanted[:2]), wanted[:2])
            else:
                given, own = (dy, streams, given[2], norm), (site.y_norm_eps, serves, wide.dtype, wanted)
                of_y, dweights, dnorm = only(of_normed.apply_backward(*given, *own), wanted)
            if weights is None:
                dpre, dweights = _sum(dpre, dweights), None
        if not all(t is None for t in (dpre, dpost, dcomb)):
            given = dpre, dpost, dcomb, mixes, scale, base
            wanted, split = (True, any(needed[7:9])), site.of_split(x.size(-2))
            dmixes, sums = only(of_split.apply_backward(*given, *split, serves, wanted), wanted)
            dscale, dbase = of_split.of_parameters(sums, needed[7:9], scale, base)
            given = dmixes, for_projection(wide), fn, mixes, norms
            wanted = True, needed[6]
            of_stream, dfn = only(of_mixes.apply_backward(*given, site.precision, serves, wanted), wanted)
            of_stream, dfn = of_stream.view(wide.shape), cast(dfn, fn)
        residual = None if dstreams is None else dstreams.to(wide.dtype)
        wanted, given_f = of_post.with_bias(needed, f, x)
        given = _sum(residual, of_y, of_stream), given_f, x, post, comb, bias
        gradients = of_post.apply_backward(*given, site.comb_order, serves, wanted)
        made = of_post.of_update(gradients, needed, f, bias)
        return *made, dweights, dfn, dscale, dbase, cast(dnorm, norm), *none[10:]
