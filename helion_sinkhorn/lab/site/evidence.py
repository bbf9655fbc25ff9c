"""EVIDENCE of hc_site: results of tokens token by token, sums over tokens element by element.

An element of the batch is a group of tokens, and has its own sums dfn, dscale and dbase, from its own call.
fn includes the norm weight, as when the public function calls an operator.  If a workload has a norm weight,
the public function itself is called with a weight of powers of two, and with fn divided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from helion_sinkhorn.lab.evidence import Choices, Evidence, Results, Tensors, by_elements, given, used
from helion_sinkhorn.lab.site import trials
from helion_sinkhorn.lab.site.boundary import evidence as crossing
from helion_sinkhorn.lab.site.boundary.evidence import OF_UPDATE, PREFIX, flat, norm_weight_of
from helion_sinkhorn.lab.site.budget import RESULTS, evaluated, site_of
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteParameters
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.site import launch
from helion_sinkhorn.ops.mhc.site.api import hc_site
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as boundary_backward
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head
from helion_sinkhorn.ops.mhc.site.boundary.head.space import FEWEST_STREAMS
from helion_sinkhorn.ops.mhc.site.boundary.last import launch as last
from helion_sinkhorn.ops.mhc.site.boundary.last import space as last_space
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.runtime.updates import Update

OF_TOKENS = ("y", "post", "comb", "dx")
VALUES, SUMS = OF_TOKENS[:3], ("dfn", "dscale", "dbase")
COMPUTES = {launch.WEIGHTS: ("dx", *SUMS), launch.BACKWARD: ("dx", "dfn")}
BOUNDARY = {
    boundary.SPLIT: ("post", "comb"), boundary.FORWARD: VALUES, boundary.FINISH: ("post", "comb"),
    boundary_backward.BACKWARD: ("dx",), boundary_backward.SECOND: ("dx",),
    boundary_backward.PROJECTION: ("dfn",),
}  # fmt: skip
"""The results that show what each kernel of hc_boundary did."""
NAMES = ("x", "dresidual", "dy", "dpost", "dcomb", "fn", "scale", "base")
"""The inputs, in order; if the workload crosses, those of `make_update` follow."""
ENDS = {last.LAST: last.KERNEL, **head.KERNELS}
KERNELS = {**launch.KERNELS, **boundary.KERNELS, **boundary_backward.KERNELS, **ENDS}


def kernel_calls(workload: HcSiteWorkload) -> Iterator[tuple[str, Any]]:
    call = launch.call_for(workload.n, workload.c, workload.dtype, workload.precision)
    of_boundary = (*boundary.KERNELS, *boundary_backward.KERNELS) if workload.n <= MOST_STREAMS else ()
    for name in (*launch.KERNELS, *of_boundary):
        yield name, call
    if workload.n <= last_space.MOST_STREAMS and 1 < workload.c <= last_space.MOST_COLUMNS:
        of_end = launch.call_for(workload.n, workload.c, workload.dtype, "float32")
        yield last.LAST, of_end
        # where results are tested, a head's collapse is that of a site by its own weights
        if workload.n >= FEWEST_STREAMS and (workload.own_weights or not workload.crosses):
            yield from ((name, of_end) for name in head.KERNELS)


def results(workload: HcSiteWorkload) -> tuple[str, ...]:
    return (*RESULTS, *of_crossing(workload)) if workload.crosses else RESULTS


def of_crossing(workload: HcSiteWorkload) -> tuple[str, ...]:
    """The results of hc_boundary."""
    return tuple(PREFIX + name for name in crossing.budget.results_of(workload))


def by_kernels(workload: HcSiteWorkload) -> tuple[str, ...]:
    """The results of kernels, but no gradients of a collapse by its own weights, which other kernels make."""
    values = tuple(PREFIX + name for name in crossing.VALUES)
    return (*RESULTS, *values) if workload.own_weights else results(workload)


def by_public(workload: HcSiteWorkload, on_gpu: bool) -> list[str]:
    """The results by which the public function is tested.

    The parts round the gradient of narrow streams more than once.  So these gradients are tested by kernels
    only, and dx of a CPU in float32 only.
    """
    rounded = [] if workload.dtype == torch.float32 else [PREFIX + name for name in OF_UPDATE]
    if rounded and not on_gpu:
        rounded.append("dx")
    return [name for name in results(workload) if name not in rounded]


def of_call(kernel: str, call: Any, tokens: int) -> HcSiteWorkload:
    return trials.workload_of(call, tokens)


def inputs(workload: HcSiteWorkload, steps: int, **drawn: Any) -> Tensors:
    """x, the upstream gradients, and the parameters once for each element."""
    x, fn, weight, scale, base, *upstream = workload.make_inputs(**drawn)
    fn = fn if weight is None else fn * weight
    made = x, *upstream, *(t.expand(len(x), *t.shape) for t in (fn, scale, base))
    return (*made, *workload.make_update(x)) if workload.crosses else made


def truths(workload: HcSiteWorkload, *everything: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64; where the workload crosses, those of hc_boundary too."""
    site = everything[: len(NAMES)]
    of_site = crossing.within(evaluated(workload, *site), site_of(workload, *site), VALUES)
    return of_site | crossing.truths(workload, *everything) if workload.crosses else of_site


def run(
    workload: HcSiteWorkload, choices: Choices | None, of: Collection[str], *everything: torch.Tensor
) -> Results:
    """hc_site's results by its kernels or those of hc_boundary, and hc_boundary's own."""
    if choices is None:
        return public(workload, of, *everything)
    wanted = [name.removeprefix(PREFIX) for name in of if name.startswith(PREFIX)]
    by_name = {}
    if wanted and choices:
        by_name = crossing.named(crossing.run(workload, choices, wanted, *everything))
    elif wanted:
        # calls use the public function, which also sums over tokens
        by_name = crossing.named(crossing.public(workload, wanted, *everything))
    of = [name for name in of if not name.startswith(PREFIX)]
    if not of:
        return by_name
    by_boundary = choices.keys() & {*boundary.KERNELS, *boundary_backward.KERNELS}
    compute = crossed if by_boundary else launched
    return by_name | by_calls(lambda *given: compute(workload, choices, of, *given), of, *everything)


def by_calls(compute: Callable[..., Results], of: Collection[str], *everything: torch.Tensor) -> Results:
    """What belongs to tokens by one call for all elements, sums by a call for each."""
    site = everything[: len(NAMES)]

    def of_elements(at: slice) -> Results:
        tokens, parameters = (t[at] for t in site[:5]), (t[0] for t in site[5:])
        named = compute(*tokens, *parameters)
        named = {name: flat(name, t) for name, t in named.items()}
        return named | {n: named[n][None] if n == "dfn" else named[n][None, None] for n in SUMS if n in named}

    return by_elements(of_elements, len(site[0]), of, SUMS)


def launched(
    w: HcSiteWorkload, choices: Choices, of: Collection[str], x, dresidual, dy, dpost, dcomb, *parameters
) -> Results:
    site = SiteParameters(*parameters)
    y, pre, post, comb, *made = launch.forward(x, site, None, w.arguments)
    by_name = {"y": y, "post": post, "comb": comb}
    if {*of} <= {*VALUES}:
        return by_name
    dresidual, dy, dpost, dcomb = upstream_of(w, dresidual, dy, dpost, dcomb)
    upstream, kept = SiteGradients(dresidual, dy, None, dpost, dcomb), Kept(x, site, pre, *made, own=True)
    dx, dfn, sums, *_ = launch.backward(upstream, kept, w.arguments, choices=choices)
    dbase, dscale = sums.split((w.m, 3))
    return by_name | {"dx": dx, "dfn": dfn, "dscale": dscale, "dbase": dbase}


def crossed(
    w: HcSiteWorkload, choices: Choices, of: Collection[str], x, dresidual, dy, dpost, dcomb, *parameters
) -> Results:
    """The results by hc_boundary's kernels, with x as new streams, since f is 0 and comb the identity.

    hc_post's row tests how they mix streams.  The collapse takes the coefficients that hc_site makes of x; dx
    is the gradient of the old streams.
    """
    site = SiteParameters(*parameters)
    _, pre, _, _, *made = launch.forward(x, site, None, w.arguments)
    identity = torch.eye(w.n, device=x.device).expand_as(dcomb)
    update = Update(torch.zeros_like(dy), x, dpost, identity)
    by_name = {}
    if {*of} & {*VALUES}:
        normed = site._replace(y_norm_weight=crossing.norm_for(choices, w, x.device))
        _, y, _, post, comb, *_ = boundary.forward(update, pre, normed, w.arguments, choices)
        by_name = {"y": y, "post": post, "comb": comb}
    if {*of} <= {*VALUES}:
        return by_name
    _, dpre = pre_launch.backward(dy, x, pre)
    upstream, kept = SiteGradients(dresidual, dy, dpre, dpost, dcomb), Kept(x, site, pre, *made, own=False)
    asked = ways.Asked(upstream, update, kept, w.arguments)
    _, dx, _, _, dfn, *_ = ways.in_one_pass(asked, choices)
    return by_name | {"dx": dx, "dfn": dfn}


def upstream_of(workload: HcSiteWorkload, dresidual, dy, dpost, dcomb) -> list[torch.Tensor | None]:
    """The upstream gradients as the operator gets them."""
    return given(workload.unused, dresidual=dresidual, dy=dy, dpost=dpost, dcomb=dcomb)


def public(workload: HcSiteWorkload, of: Collection[str], *everything: torch.Tensor) -> Results:
    """By the public functions and autograd."""
    wanted = [name.removeprefix(PREFIX) for name in of if name.startswith(PREFIX)]
    by_name = crossing.named(crossing.public(workload, wanted, *everything)) if wanted else {}
    of = [name for name in of if not name.startswith(PREFIX)]
    return by_name | by_calls(lambda *given: served(workload, *given), of, *everything) if of else by_name


def served(workload: HcSiteWorkload, x, dresidual, dy, dpost, dcomb, *parameters) -> Results:
    """All results of a call."""
    fn, *others = parameters
    weight = norm_weight_of(workload).to(x) if workload.norm_weight else None
    leaves = [t.detach().requires_grad_() for t in (x, fn if weight is None else fn / weight, *others)]
    y, post, comb, residual = hc_site(*leaves, norm_weight=weight, **workload.options)
    upstream = upstream_of(workload, dresidual, dy, dpost, dcomb)
    results, upstream = used((residual, y, post, comb), upstream)
    dx, dfn, *of_others = torch.autograd.grad(results, leaves, upstream)
    gradients = dx, dfn if weight is None else dfn / weight, *of_others
    return dict(zip(RESULTS, (y.detach(), post.detach(), comb.detach(), *gradients), strict=True))


def call_public(workload: HcSiteWorkload, empty: Callable[..., torch.Tensor]) -> None:
    x = empty(workload.batch, workload.n, workload.c, dtype=workload.dtype)
    given = x, empty(workload.m, workload.n * workload.c), empty(3), empty(workload.m)
    hc_site(*given, implementation="helion", **workload.options)


def joined() -> dict[str, tuple[str, ...]]:
    """The results of each kernel, with hc_boundary's own after those of hc_site that it also computes."""
    own = {kernel: tuple(PREFIX + name for name in names) for kernel, names in crossing.COMPUTES.items()}
    kernels = {**COMPUTES, **BOUNDARY, boundary_backward.SUMS: (), **dict.fromkeys(ENDS, ())}
    return {kernel: (*names, *own.get(kernel, ())) for kernel, names in kernels.items()}


EVIDENCE = Evidence(
    "hc_site",
    HcSiteWorkload,
    KERNELS,
    joined(),
    kernel_calls,
    of_call,
    results,
    inputs,
    truths,
    run,
    call_public,
    same_bits=frozenset(OF_TOKENS),
    public=public,
    by_public=by_public,
    by_kernels=by_kernels,
    alone=trials.ALONE,
    errors=trials.ERRORS,
    # timed with a norm and tested without, which is another program
    judged_apart=frozenset({boundary_backward.SECOND}),
    call=trials.run_call,
)
