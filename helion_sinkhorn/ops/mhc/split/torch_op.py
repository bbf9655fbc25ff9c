"""The torch operators of hc_split_sinkhorn.

`helion_sinkhorn::hc_split_sinkhorn` returns (pre, post, comb), and its backward (dmixes, dbase and dscale in
one tensor of the computing dtype), with an empty tensor for each that is not `wanted`.
`hc_split_sinkhorn_reduced` takes partial sums (splits, ..., n^2 + 2n) and squares (splits, ...) and returns
(pre, post, comb, mixes, norms): the backward above takes mixes (..., n^2 + 2n), and norms (..., 2) are r and
k.  From the gradient of the mixes they make, for every split, the gradients
    of partials: r dmixes,  of squares: (k / 2) sum_j dmixes_j mixes_j,
    k = -r^2 / size, or with eps_outside -r / (size sqrt(q)), and 0 where q is 0
All take any leading shape; `implementation` is "helion" or "pytorch".
"""

from __future__ import annotations

from helion_sinkhorn.ops.mhc.split import eager
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.mhc.split.partials import Reduce
from helion_sinkhorn.runtime.pieces import COMPUTING
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define, differentiable, last
from helion_sinkhorn.runtime.wanted import filled, only

FORWARD, BACKWARD = "hc_split_sinkhorn", "hc_split_sinkhorn_backward"
REDUCED = "hc_split_sinkhorn_reduced"
CONSTANTS = (
    "int n, int n_iters, float eps, float post_mult, float pre_eps, float post_eps, str comb_order, "
    "str implementation"
)
ARGUMENTS = f"Tensor mixes, Tensor scale, Tensor base, {CONSTANTS}"
implementations = Implementations("helion_sinkhorn.ops.mhc.split.launch", eager)


def forward(mixes, scale, base, *arguments):
    """(pre, post, comb); see api.hc_split_sinkhorn."""
    *options, implementation, out_dtype = arguments
    with implementations.chosen_for(mixes, implementation) as module:
        return module.forward(mixes, scale, base, SplitOptions(*options), out_dtype)


def forward_reduced(partials, squares, scale, base, size, norm_eps, eps_outside, *arguments):
    """(pre, post, comb, mixes, norms) of partial sums."""
    *options, implementation, out_dtype = arguments
    reduce, own = Reduce(squares, size, norm_eps, eps_outside), (SplitOptions(*options), out_dtype)
    with implementations.chosen_for(partials, implementation) as module:
        if module is not eager:
            return module.forward_reduced(partials, reduce, scale, base, *own)
        mixes, norms = eager.reduce(partials, reduce)
        # the fake operator says that they are, whatever the layout of the partial sums
        mixes = mixes.contiguous()
        return *eager.forward(mixes, scale, base, *own), mixes, norms


def backward(dpre, dpost, dcomb, mixes, scale, base, *arguments):
    """(dmixes, dbase and dscale) from the arguments of `forward` only."""
    *options, implementation, wanted = arguments
    upstream, options = CoefficientGradients(dpre, dpost, dcomb), SplitOptions(*options)
    with implementations.chosen_for(mixes, implementation) as module:
        return filled(module.backward(upstream, mixes, scale, base, options, wanted), (mixes, base))


def _empty_results(mixes, scale, base, n, *arguments):
    lead, dtype = mixes.shape[:-1], arguments[-1]
    return tuple(mixes.new_empty(*lead, *shape, dtype=dtype) for shape in ((n,), (n,), (n, n)))


def _empty_reduced(partials, squares, scale, base, size, norm_eps, eps_outside, n, *arguments):
    mixes = partials.new_empty(partials.shape[1:])
    coefficients = _empty_results(mixes, scale, base, n, *arguments)
    return *coefficients, mixes, partials.new_empty(*mixes.shape[:-1], 2)


def _empty_gradients(dpre, dpost, dcomb, mixes, scale, base, *arguments):
    made = mixes.new_empty(mixes.shape), mixes.new_empty(mixes.size(-1) + 3, dtype=COMPUTING[mixes.dtype])
    return filled(only(made, arguments[-1]), (mixes, base))


def _keep(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:3])
    ctx.arguments = inputs[3:11]
    ctx.set_materialize_grads(False)


def _gradient(ctx, dpre, dpost, dcomb):
    if dpre is None and dpost is None and dcomb is None:
        return (None,) * 12
    needed = ctx.needs_input_grad[:3]
    return *_gradients(ctx, needed, dpre, dpost, dcomb, *ctx.saved_tensors), *[None] * 9


def _gradients(ctx, needed, dpre, dpost, dcomb, mixes, scale, base):
    """(dmixes, dscale, dbase), None for each that is not needed."""
    wanted = needed[0], any(needed[1:])
    given = dpre, dpost, dcomb, mixes, scale, base
    dmixes, sums = only(apply_backward(*given, *ctx.arguments, wanted), wanted)
    return dmixes, *of_parameters(sums, needed[1:], scale, base)


def of_parameters(sums, needed, scale, base):
    """(dscale, dbase) in their dtypes, None if not needed; `sums` has dbase and then dscale, or is None."""
    if sums is None:
        return None, None
    dbase, dscale = sums.split_with_sizes((base.size(0), 3), -1)
    return only((dscale.to(scale.dtype), dbase.to(base.dtype)), needed)


def _keep_reduced(ctx, inputs, output):
    ctx.save_for_backward(*output[3:], *inputs[2:4])
    ctx.splits, ctx.arguments = inputs[0].size(0), inputs[7:15]
    ctx.size, ctx.eps_outside = inputs[4], inputs[6]
    ctx.set_materialize_grads(False)


def _gradient_reduced(ctx, dpre, dpost, dcomb, dmixes, dnorms):
    mixes, norms, scale, base = ctx.saved_tensors
    needed, dscale, dbase = ctx.needs_input_grad[:4], None, None
    of_projection = any(needed[:2])
    if not (dpre is None and dpost is None and dcomb is None):
        own = of_projection, *needed[2:]
        through, dscale, dbase = _gradients(ctx, own, dpre, dpost, dcomb, mixes, scale, base)
        dmixes = through if dmixes is None or through is None else dmixes + through
    given = None, None
    if of_projection and not (dmixes is None and dnorms is None):
        given = eager.reduce_backward(dmixes, dnorms, mixes, norms, ctx.splits, ctx.size, ctx.eps_outside)
    return *only(given, needed[:2]), dscale, dbase, *[None] * 12


call = define(
    FORWARD, f"({ARGUMENTS}, ScalarType out_dtype) -> (Tensor, Tensor, Tensor)", forward, _empty_results, 3
)
call_backward = define(
    BACKWARD,
    f"(Tensor? dpre, Tensor? dpost, Tensor? dcomb, {ARGUMENTS}, bool[] wanted) -> (Tensor, Tensor)",
    backward, _empty_gradients, 6,
)  # fmt: skip
call_reduced = define(
    REDUCED,
    "(Tensor partials, Tensor squares, Tensor scale, Tensor base, int size, float norm_eps, "
    f"bool eps_outside, {CONSTANTS}, ScalarType out_dtype) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    forward_reduced, _empty_reduced, 4,
)  # fmt: skip
apply = differentiable(FORWARD, FORWARD, call, _keep, _gradient)
apply_reduced = differentiable(REDUCED, FORWARD, call_reduced, _keep_reduced, _gradient_reduced)
apply_backward = last(BACKWARD, FORWARD, call_backward)
roles(FORWARD, "tpp -> ttt", _empty_results, before(1))
roles(REDUCED, "sspp -> ttttt", _empty_reduced, before(2))
roles(BACKWARD, "ttttpp -> t+", _empty_gradients, before(1, 3))
