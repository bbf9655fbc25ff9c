"""hc_site as the gate judges it: results of tokens token by token, sums over tokens element by element.

An element of the batch is a group of tokens: each has sums of its own, dfn, dscale and dbase, from its own
call.  The norm weight is in fn, as the public function has it before it calls an operator; that function
itself has one of powers of two where a workload has one, with which fn is the same.
"""

from __future__ import annotations

import functools

import torch

from ci.gate import choices, gate
from ci.operators.hc_site import boundary
from ci.operators.hc_site.leaning import systematic
from helion_sinkhorn import hc_site
from helion_sinkhorn.configs.device import Device
from helion_sinkhorn.lab.site import budget
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice
from helion_sinkhorn.runtime.launch import device_of

OF_TOKENS = ("y", "post", "comb", "dx")
VALUES, SUMS = OF_TOKENS[:3], ("dfn", "dscale", "dbase")
COMPUTES = {"hc_site_weights": ("dx", *SUMS), "hc_site_backward": ("dx", "dfn")}
"""The results that show what each kernel of its own did."""
BOUNDARY = {
    "hc_boundary_split": ("post", "comb"), "hc_boundary_forward": VALUES,
    "hc_boundary_backward": ("dx",), "hc_boundary_projection": ("dfn",),
}  # fmt: skip
"""The results that show what each kernel of hc_boundary did."""
NAMES = ("x", "dresidual", "dy", "dpost", "dcomb", "fn", "scale", "base")
"""The inputs, in the gate's order; behind them, where the workload crosses, those of `make_update`."""


def inputs(workload: HcSiteWorkload, steps: int) -> tuple[torch.Tensor, ...]:
    """x, the upstream gradients, and the parameters once for each element."""
    x, fn, weight, scale, base, *upstream = workload.make_inputs()
    fn = fn if weight is None else fn * weight
    made = x, *upstream, *(t.expand(len(x), *t.shape) for t in (fn, scale, base))
    return (*made, *workload.make_update(x)) if workload.crosses else made


def truths(workload: HcSiteWorkload, *given: torch.Tensor) -> dict[str, gate.Truth]:
    """The equations in float64; where the workload crosses, those of hc_boundary too."""
    everything, given = given, given[: len(NAMES)]
    limits = budget.evaluated(workload, *given)
    spreads = {
        name: gate.spread(e.value, e.budget, budget.dtype_of(workload, name)) for name, e in limits.items()
    }
    most = systematic(budget.site_of(workload, *given), limits, spreads)
    found = {
        name: gate.Truth(
            flat(name, e.value), flat(name, e.budget), flat(name, spreads[name]),
            gate.noticeable(flat(name, e.value)) if name in VALUES else gate.largest(flat(name, e.value)),
            # A token's entries share its mixes, and sums over tokens those of all.  What tokens share, the
            # errors of their parameters, goes to one side at most as far as `most` has it.
            most[name], len(e.value),
            tuple(range(1, e.value.dim())) if name in SUMS else tuple(range(2, flat(name, e.value).dim())),
            budget.dtype_of(workload, name),
        )
        for name, e in limits.items()
    }  # fmt: skip
    return found | boundary.truths(workload, *everything) if workload.crosses else found


def flat(name: str, t: torch.Tensor) -> torch.Tensor:
    """dx as the gate has it: a row for each token."""
    return t.flatten(2) if name == "dx" else t


def candidates(workload: HcSiteWorkload, *given: torch.Tensor) -> list[gate.Candidate]:
    """What is served, and both kernels of its own with each of their configs; on a CPU the CPU path.

    The CPU path rounds dx more than once for narrow streams, and is judged by the others then.
    """
    if not given[0].is_cuda:
        names = [name for name in budget.RESULTS if name != "dx" or workload.dtype == torch.float32]
        found = choices.on_cpu(names, as_served, workload)
        return found + boundary.candidates(workload, None, None, *given) if workload.crosses else found
    from helion_sinkhorn.ops.mhc.site import launch

    device = device_of(given[0])
    call = launch.call_for(workload.n, workload.c, workload.dtype, workload.precision)
    tokens = len(given[0]) * workload.tokens
    found = [
        gate.Candidate("hc_site", name, {}, "all served", True, functools.partial(on_device, workload, name))
        for name in budget.RESULTS
    ]
    found += choices.candidates(
        COMPUTES, call, tokens, device,
        lambda name, choice: functools.partial(on_gpu, workload, name, {choice.kernel: choice}),
    )  # fmt: skip
    if workload.crosses:
        found += boundary.candidates(workload, call, device, *given)
    return found + by_boundary(workload, call, device, tokens)


def by_boundary(
    workload: HcSiteWorkload, call: SiteCall, device: Device, tokens: int
) -> list[gate.Candidate]:
    """Results of hc_boundary's kernels, with each of their configs, where they take the call.

    Its new streams are x: f is 0 and comb the identity.  How it mixes streams is judged by hc_post's row.
    """
    if workload.n > MOST_STREAMS:
        return []

    def run(name: str, choice: Choice) -> choices.Run:
        return functools.partial(crossed if name in VALUES else crossed_back, workload, choice, name)

    return choices.candidates(BOUNDARY, call, tokens, device, run)


def crossed(workload: HcSiteWorkload, choice: Choice, name: str, *given: torch.Tensor) -> torch.Tensor:
    """One of VALUES, the collapse by the coefficients that hc_site makes of x."""
    from helion_sinkhorn.ops.mhc.site import launch
    from helion_sinkhorn.ops.mhc.site.boundary import launch as crossing

    def run(x, dresidual, dy, dpost, dcomb, *parameters):
        _, pre, *_ = launch.forward(x, *parameters, None, *workload.arguments)
        identity = torch.eye(workload.n, device=x.device).expand_as(dcomb)
        _, y, _, post, comb, *_ = crossing.forward(
            torch.zeros_like(dy), x, dpost, identity, None, pre, *parameters, *workload.arguments,
            choices={choice.kernel: choice},
        )  # fmt: skip
        return {"y": y, "post": post, "comb": comb}

    return result(name, run, *given)


def crossed_back(workload: HcSiteWorkload, choice: Choice, name: str, *given: torch.Tensor) -> torch.Tensor:
    """dx or dfn: the gradient of the old streams is that of x, and of the weights that of pre."""
    from helion_sinkhorn.ops.mhc.pre import launch as collapse
    from helion_sinkhorn.ops.mhc.site import launch
    from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as crossing

    def run(x, dresidual, dy, dpost, dcomb, *parameters):
        _, pre, _, _, mixes, norms = launch.forward(x, *parameters, None, *workload.arguments)
        _, dpre = collapse.backward(dy, x, pre)
        identity = torch.eye(workload.n, device=x.device).expand_as(dcomb)
        kept = torch.zeros_like(dy), x, dpost, identity, pre, *parameters, x, mixes, norms
        _, dx, _, _, dfn, *_ = crossing.in_one_pass(
            (dresidual, dy, dpre, dpost, dcomb), kept, None, *workload.arguments,
            choices={choice.kernel: choice},
        )  # fmt: skip
        return {"dx": dx, "dfn": dfn}

    return result(name, run, *given)


def as_served(workload: HcSiteWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    """One result by the public function and autograd."""
    return result(name, functools.partial(served, workload), *given)


def on_device(workload: HcSiteWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    """The same on a GPU; what emulates one runs launches, and that function would take its CPU path."""
    return as_served(workload, name, *given) if given[0].is_cuda else on_gpu(workload, name, {}, *given)


def upstream_of(workload: HcSiteWorkload, dresidual, dy, dpost, dcomb) -> list[torch.Tensor | None]:
    """As the operator has them."""
    return choices.given(workload.unused, dresidual=dresidual, dy=dy, dpost=dpost, dcomb=dcomb)


def served(workload: HcSiteWorkload, x, dresidual, dy, dpost, dcomb, *parameters) -> gate.Results:
    """All results of a call."""
    fn, *others = parameters
    weight = boundary.norm_weight_of(workload).to(x) if workload.norm_weight else None
    leaves = [t.detach().requires_grad_() for t in (x, fn if weight is None else fn / weight, *others)]
    y, post, comb, residual = hc_site(*leaves, norm_weight=weight, **workload.options)
    upstream = upstream_of(workload, dresidual, dy, dpost, dcomb)
    results, upstream = choices.used((residual, y, post, comb), upstream)
    dx, dfn, *of_others = torch.autograd.grad(results, leaves, upstream)
    gradients = dx, dfn if weight is None else dfn / weight, *of_others
    return dict(zip(budget.RESULTS, (y.detach(), post.detach(), comb.detach(), *gradients), strict=True))


def on_gpu(workload: HcSiteWorkload, name: str, chosen: dict, *given: torch.Tensor) -> torch.Tensor:
    """One result, kernels with the choices named and what is served of the others."""
    from helion_sinkhorn.ops.mhc.site import launch

    def run(x, dresidual, dy, dpost, dcomb, *parameters):
        y, pre, post, comb, mixes, norms = launch.forward(x, *parameters, None, *workload.arguments)
        if name in VALUES:
            return {"y": y, "post": post, "comb": comb}
        dresidual, dy, *upstream = upstream_of(workload, dresidual, dy, dpost, dcomb)
        dx, dfn, sums, _ = launch.backward(
            dresidual, dy, None, *upstream, x, *parameters, pre, mixes, norms, True, *workload.arguments,
            choices=chosen,
        )  # fmt: skip
        dbase, dscale = sums.split((workload.m, 3))
        return {"dx": dx, "dfn": dfn, "dscale": dscale, "dbase": dbase}

    return result(name, run, *given)


def result(name: str, run, *given: torch.Tensor) -> torch.Tensor:
    """One result: what belongs to tokens by one call for all elements, sums by a call for each."""
    given = given[: len(NAMES)]
    tokens, parameters = given[:5], given[5:]
    if name in OF_TOKENS:
        return flat(name, run(*tokens, *(t[0] for t in parameters))[name])
    each = [run(*(t[k] for t in given))[name] for k in range(len(given[0]))]
    sums = torch.stack(each)
    return sums if name == "dfn" else sums.unsqueeze(1)
