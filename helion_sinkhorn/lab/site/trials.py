"""The kernels of hc_site and hc_boundary by themselves: no result needs one without others."""

from __future__ import annotations

import torch

from helion_sinkhorn.lab.draws import noise
from helion_sinkhorn.lab.evidence import Alone, Tensors
from helion_sinkhorn.lab.mixes import budget as of_mixes
from helion_sinkhorn.lab.post import budget as of_post
from helion_sinkhorn.lab.pre import budget as of_pre
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.row import TRIED
from helion_sinkhorn.lab.site.boundary import trials as of_ends
from helion_sinkhorn.lab.site.boundary.budget import OF_PASS, of_pass
from helion_sinkhorn.lab.site.boundary.trials import JUDGED_TOKENS, norm_error
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.post import launch as post_launch
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.site import launch
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways
from helion_sinkhorn.ops.mhc.site.boundary.backward.space import CHUNK
from helion_sinkhorn.ops.mhc.site.boundary.head.launch import HEAD, SUMS
from helion_sinkhorn.ops.mhc.site.boundary.last.launch import LAST
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS, chunk_of
from helion_sinkhorn.ops.mhc.site.finish import launch as finish
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.updates import Update


def of_collapse(call: SiteCall, batch: int, device: str) -> Tensors:
    """dy, the streams and the weights."""
    dy, x = noise(device, call.dtype, (batch, call.columns), (batch, call.n, call.columns))
    return dy, x, *noise(device, "float32", (batch, call.n))


def of_streams(call: SiteCall, batch: int, device: str) -> Tensors:
    """The upstream gradient's parts, what the norm adds, fn, dresidual and those of the collapse."""
    mixes = call.mixes
    g, along, fn = noise(device, "float32", (batch, mixes.parts, mixes.m), (batch,), (mixes.m, mixes.columns))
    (dresidual,) = noise(device, call.dtype, (batch, call.n, call.columns))
    return g.to(torch.bfloat16), along, fn, dresidual, *of_collapse(call, batch, device)


def run_weights(call: SiteCall, choice: Choice, dy, x, weights) -> torch.Tensor:
    made = None, torch.empty_like(weights)
    pre_launch.gradients(dy, x, weights, made, launch.KERNELS[launch.WEIGHTS], call, choice)
    return made[1]


def run_backward(call: SiteCall, choice: Choice, *operands: torch.Tensor) -> Tensors:
    g, along, fn, dresidual, dy, x, weights = operands
    given, dx_of = mixes_launch.Upstream(g, along), mixes_launch.Dx(dresidual, dy, weights)
    return mixes_launch.gradients(given, x, fn, call, choice, dx_of, launch.KERNELS[launch.BACKWARD])


def fn_alone(call: SiteCall, batch: int, device: str) -> Tensors:
    return noise(device, "float32", (call.mixes.m, call.mixes.columns))


def of_boundary(call: SiteCall, batch: int, device: str) -> Tensors:
    """f, the streams, post, comb, the weights of the collapse, and fn in parts."""
    split = noise(device, "bfloat16", boundary.split_shape(call))
    return *of_ends.of_last(call, batch, device)[:5], *split


def run_boundary(call: SiteCall, choice: Choice, f, x, post, comb, weights, split) -> Tensors:
    streams, y, sums = boundary.one_pass(Update(f, x, post, comb), weights, split, call, "io", choice)
    return streams, y, *sums


def of_boundary_backward(call: SiteCall, batch: int, device: str) -> Tensors:
    """The arguments of `boundary_backward.one_pass` except the bias, with fn's parts in both layouts."""
    f, x, post, comb, weights, split = of_boundary(call, batch, device)
    g, along, _, dstreams, dy, streams, _ = of_streams(call, batch, device)
    shape = call.mixes.m, call.mixes.parts, call.n, call.columns
    (by_stream,) = noise(device, "bfloat16", shape)
    return dstreams, dy, g, along, streams, split, by_stream, f, x, post, comb, weights


def run_boundary_backward(call: SiteCall, choice: Choice, *operands: torch.Tensor, norm=None) -> Tensors:
    *before, split, by_stream, f, x, post, comb, weights = operands
    variant = dict(choice.variant)
    rows = split if variant.get("together") else by_stream
    given = boundary_backward.Given(*before, rows, f, x, None, post, comb, weights)
    kernel = boundary_backward.KERNELS[choice.kernel]
    pass_of = boundary_backward.Pass(kernel, call, "io", norm, variant.get("again", False))
    made = boundary_backward.one_pass(given, pass_of, (True, True, True, True, norm is None), choice)
    return tuple(t for t in made if t is not None)


def of_second(call: SiteCall, batch: int, device: str) -> Tensors:
    """The weight of the norm and its factors, and what the pass takes besides."""
    behind = noise(device, "float32", (call.columns,), (batch, 2))
    return *behind, *of_boundary_backward(call, batch, device)


def run_second(call: SiteCall, choice: Choice, y_weight, factors, *operands) -> Tensors:
    """A launch with the norm, as in models, which does more than one without."""
    return run_boundary_backward(call, choice, *operands, norm=(y_weight, factors))


def of_sums(call: SiteCall, batch: int, device: str) -> Tensors:
    """Sums over chunks of columns."""
    n, splits = call.n, -(-call.columns // CHUNK)
    return noise(device, "float32", *((batch, splits, size) for size in (n, n * n, n)))


def run_sums(call: SiteCall, choice: Choice, *partials: torch.Tensor) -> Tensors:
    return boundary_backward.summed(*partials, call, partials, choice)


def of_projection(call: SiteCall, batch: int, device: str) -> Tensors:
    """The upstream gradient's parts, and the streams."""
    g, _, _, streams, *_ = of_streams(call, batch, device)
    return g, streams


def workload_of(call: SiteCall, tokens: int) -> HcSiteWorkload:
    """A workload of this call."""
    return HcSiteWorkload(*TRIED, call.n, call.columns, tokens, getattr(torch, call.dtype), call.precision)


def judged(call: SiteCall) -> tuple[HcSiteWorkload, Tensors]:
    """A workload of this call, and one element's inputs."""
    workload = workload_of(call, JUDGED_TOKENS)
    x, fn, _, scale, base, *upstream = workload.make_inputs()
    return workload, tuple(t if k > 4 else t[0] for k, t in enumerate((x, *upstream, fn, scale, base)))


def weights_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of the gradient of the collapse's weights."""
    _, (x, _, dy, dpost, *_) = judged(call)
    given = x, dpost.sigmoid(), dy
    dweights = run_weights(call, choice, *(t.to(device) for t in (dy, *given[:2])))
    return worst(dweights, of_pre.exact(*given)["dpre"], of_pre.error_budget(*given)["dpre"])


def boundary_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of the new streams, of their collapse, and of the mixes that their sums make."""
    workload, inputs = judged(call)
    x, grad, f, post, comb, fn, *_ = (t[None] for t in inputs)
    weights = post.sigmoid()
    given = Update(*(t[0].to(device) for t in (f, x, post, comb))), weights[0].to(device)
    names = boundary.SPLIT, boundary.FORWARD
    of_split, of_forward = (choice if choice.kernel == name else None for name in names)
    split = boundary.split_of(fn[0].to(device), call, of_split)
    streams, y, sums = boundary.one_pass(*given, split, call, "io", of_forward)
    mixes, _ = mixes_launch.reduce(sums, call.mixes, workload.norm_eps, workload.eps_outside)
    update, stored = (f, x, post, comb, grad), streams[None].cpu()
    collapse = stored, weights, f
    nothing = torch.zeros_like(mixes)[None].cpu()
    projected = of_mixes.evaluated(workload.of_mixes, stored, nothing, fn)["mixes"]
    return max(
        worst(streams[None], of_post.exact(*update)["out"], of_post.error_budget(*update)["out"]),
        worst(y[None], of_pre.exact(*collapse)["y"], of_pre.error_budget(*collapse)["y"]),
        worst(mixes[None], projected.value, projected.budget),
    )


def of_finish(call: SiteCall, batch: int, device: str) -> Tensors:
    """Partial sums, those of squares, scale and base, the streams and the weight of the norm."""
    splits = -(-call.columns // chunk_of(call))
    partials, squares = noise(device, "float32", (batch, splits, call.mixes.m), (batch, splits))
    scale, base, weight = noise(device, "float32", (3,), (call.mixes.m,), (call.columns,))
    (streams,) = noise(device, call.dtype, (batch, call.n, call.columns))
    return partials, squares.abs(), scale, base, streams, weight


def run_finish(call: SiteCall, choice: Choice, partials, squares, scale, base, streams, weight) -> Tensors:
    """A launch with the collapse, which takes longer than the norm of a given y."""
    options = SiteOptions().checked()
    sums = mixes_launch.Partials(partials, squares)
    site = SiteParameters(None, scale, base, y_norm_weight=weight)
    y, *made = finish.run(sums, site, streams, None, call, options, choice=choice)
    return *made, y


def finish_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of what is normalised, by weights of the kernel's own; coefficients are results of `run`."""
    operands = of_finish(call, JUDGED_TOKENS, device)
    pre, *_, y = run_finish(call, choice, *operands)
    return norm_error(y, operands[-2], pre, operands[-1])


def boundary_gradients_error(call: SiteCall, choice: Choice, device: str) -> float:
    """The error of hc_boundary's backward, from the mixes' gradient on, with this choice for one kernel."""
    workload, inputs = judged(call)
    streams, dstreams, dy, post, comb, fn, *_ = inputs
    weights, update = post.sigmoid(), Update(streams[:, 0].flip(0), dstreams.flip(0), post, comb)
    (dmixes,) = noise("cpu", "float32", (len(streams), call.mixes.m))
    second = choice.kernel == boundary_backward.SECOND
    if second:
        # with the bits that they have if they are computed again
        made = post_launch.forward(Update(*(t.to(device) for t in update[:4])), "io")
        streams = streams if made.is_meta else made.cpu()
    given = dstreams, dy, dmixes, streams, weights, fn
    limits = of_pass(workload.of_mixes, update, *given)
    dstreams, dy, dmixes, streams, weights, fn = (t.to(device) for t in given)
    f, x, post, comb = (t.to(device) for t in update[:4])
    sums = mixes_launch.partials(streams.flatten(1), mixes_launch.split(fn, call.mixes), call.precision)
    mixes, norms = mixes_launch.reduce(sums, call.mixes, workload.norm_eps, workload.eps_outside)
    projected = mixes_launch.upstream(dmixes, mixes, norms, call.mixes)
    choices = {choice.kernel: choice}
    kernel = boundary_backward.KERNELS[choice.kernel if second else boundary_backward.BACKWARD]
    pass_of, together = boundary_backward.Pass(kernel, call, "io").as_chosen(streams, choices)
    rows = boundary_backward.parts_of_fn(fn, call, together)
    given = boundary_backward.Given(dstreams, dy, *projected, streams, rows, f, x, None, post, comb, weights)
    *made, dweights = boundary_backward.gradients(given, pass_of, (True,) * 4 + (not second,), choices)
    dfn = boundary_backward.projection(projected.g, streams, call, choices.get(boundary_backward.PROJECTION))
    results = dict(zip(OF_PASS, (*made, dfn, dweights), strict=True))
    return max(worst(results[name], *limit) for name, limit in limits.items() if results[name] is not None)


def run_call(workload: HcSiteWorkload, device: str) -> None:
    """The launches of a call and its gradient, those of the kernels of other operators too.

    Where `hc_boundary` has kernels for so many streams, they are launched as well, forward and backward.
    """
    x, fn, weight, scale, base, dresidual, dy, dpost, dcomb = workload.make_inputs(device=device)
    plain, options = SiteParameters(fn if weight is None else fn * weight, scale, base), workload.arguments
    sites = plain, plain._replace(y_norm_weight=torch.ones(workload.c, dtype=x.dtype, device=device))
    for site in sites:
        _, pre, _, _, *made = launch.forward(x, site, None, options)
        upstream = SiteGradients(dresidual, dy, None, dpost, dcomb)
        launch.backward(upstream, Kept(x, site, pre, *made, own=True), options)
    if workload.n > MOST_STREAMS:
        return
    # these gradients have the shapes and dtypes of the sublayer's output and of the coefficients before it
    update = Update(dy, x, dpost, dcomb)
    streams, *_, mixes, norms = boundary.forward(update, pre, plain, options)
    for weights in (pre, None):  # a server's, of DeepSeek-V4.1 and of V4
        boundary.forward(update, weights, sites[1], options)
    for site in sites:
        kept = Kept(streams, site, pre, mixes, norms, own=False)
        ways.backward(ways.Asked(upstream._replace(dpre=pre), update, kept, options))


ALONE = {
    launch.WEIGHTS: Alone(of_collapse, run_weights),
    launch.BACKWARD: Alone(of_streams, run_backward),
    boundary.SPLIT: Alone(fn_alone, lambda call, choice, fn: boundary.split_of(fn, call, choice)),
    boundary.FORWARD: Alone(of_boundary, run_boundary),
    boundary.FINISH: Alone(of_finish, run_finish),
    LAST: Alone(of_ends.of_last, of_ends.run_last),
    SUMS: Alone(of_ends.of_head_sums, of_ends.run_head_sums),
    HEAD: Alone(of_ends.of_head, of_ends.run_head),
    boundary_backward.BACKWARD: Alone(of_boundary_backward, run_boundary_backward),
    boundary_backward.SECOND: Alone(of_second, run_second),
    boundary_backward.SUMS: Alone(of_sums, run_sums),
    boundary_backward.PROJECTION: Alone(
        of_projection, lambda call, choice, *given: boundary_backward.projection(*given, call, choice)
    ),
}
ERRORS = {
    launch.WEIGHTS: weights_error,
    **dict.fromkeys(boundary.KERNELS, boundary_error),
    boundary.FINISH: finish_error,
    LAST: of_ends.last_error,
    SUMS: of_ends.head_sums_error,
    HEAD: of_ends.head_error,
    **dict.fromkeys(boundary_backward.KERNELS, boundary_gradients_error),
}
