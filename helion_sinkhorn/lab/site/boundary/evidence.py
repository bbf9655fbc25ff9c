"""The tests of hc_boundary, on workloads of hc_site that cross.

Inputs are random: the sublayer's output, the streams, both sets of coefficients, the weights of the collapse,
and an upstream gradient for every result.  Names of results are those of its budget after PREFIX.

Only the public function gets a bias and a weight of the norm (`apart`), which change no sum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from helion_sinkhorn.lab.evidence import Choices, Results, given, used
from helion_sinkhorn.lab.mixes.budget import Exact
from helion_sinkhorn.lab.rounding import SAMPLES
from helion_sinkhorn.lab.site.boundary import budget
from helion_sinkhorn.lab.site.boundary.budget import Inputs
from helion_sinkhorn.lab.site.budget import Site, dtype_of, leaning
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.truth import Systematic, Truth, one_sided, spread
from helion_sinkhorn.mhc.boundary import hc_boundary
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteParameters
from helion_sinkhorn.ops.mhc.site.boundary import launch
from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as backward
from helion_sinkhorn.ops.mhc.site.boundary.backward import ways
from helion_sinkhorn.ops.mhc.site.boundary.head import launch as head
from helion_sinkhorn.ops.mhc.site.boundary.last import launch as last
from helion_sinkhorn.runtime.updates import Update

PREFIX = "boundary "
SUMS, OF_UPDATE = budget.RESULTS[-3:], budget.OF_UPDATE
VALUES = budget.RESULTS[:5]
GRADIENTS = budget.RESULTS[5:]
BIAS = budget.BIAS
COMPUTES = {
    launch.SPLIT: ("pre", "post", "comb"), launch.FORWARD: VALUES, launch.FINISH: ("pre", "post", "comb"),
    backward.BACKWARD: (*OF_UPDATE, "dweights"), backward.SECOND: OF_UPDATE,
    backward.SUMS: ("dpost", "dcomb", "dweights"), backward.PROJECTION: ("dfn",),
    **dict.fromkeys((last.LAST, *head.KERNELS), ("y",)),
}  # fmt: skip
"""The results that show what each kernel did."""
OF_ARGUMENTS = {
    "f": "df", "x": "dx", "post": "dpost", "comb": "dcomb", "pre_next": "dweights", "fn": "dfn",
    "scale": "dscale", "base": "dbase", "bias": BIAS,
}  # fmt: skip
"""The gradient of each argument."""


def named(results: dict) -> dict:
    return {PREFIX + name: t for name, t in results.items()}


def flat(name: str, t: torch.Tensor) -> torch.Tensor:
    """Results with streams of a token as a row for each, sums over tokens as one."""
    return t.flatten(2) if name in ("streams", "dx") else t


def bias_of(w: HcSiteWorkload) -> torch.Tensor:
    """Multiples of 1/8 up to 2, so that f less the bias still has 8 bits."""
    return (7 * torch.arange(w.c) % 33 - 16) / 8


def norm_weight_of(w: HcSiteWorkload) -> torch.Tensor:
    """Powers of two."""
    return torch.exp2(torch.arange(w.n * w.c) % 3 - 1.0)


def apart(w: HcSiteWorkload, f: torch.Tensor, fn: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(f, fn, bias, norm weight) of a call with the same f + bias and fn times the weight."""
    bias, weight = bias_of(w).to(f.device), norm_weight_of(w).to(fn.device)
    return (f.float() - bias).to(f.dtype), fn / weight, bias, weight


def truths(workload: HcSiteWorkload, *inputs: torch.Tensor) -> dict[str, Truth]:
    """The equations in float64."""
    inputs = Inputs.of_gate(*inputs)
    limits, site = budget.evaluated(workload, *inputs), budget.crossed(workload, *inputs)
    return named(within(limits, site, VALUES))


def within(limits: dict[str, Exact], site: Site, values: Collection[str]) -> dict[str, Truth]:
    """The truths of results with these limits; `values` are no gradients."""
    dtypes = {name: dtype_of(site.workload, name) for name in limits}
    spreads = {name: spread(e.value, e.budget, dtypes[name]) for name, e in limits.items()}
    # functions, and mixes, whose errors are all to one side
    runs = (leaning(site, Systematic(seed)) for seed in range(SAMPLES))
    most = one_sided(runs, {name: e.value for name, e in limits.items()}, spreads)
    return {
        name: Truth.of(
            flat(name, e.value), flat(name, e.budget), dtypes[name], gradient=name not in values,
            # A token's entries share its mixes, and sums over tokens those of all.  What tokens share, the
            # errors of their parameters, goes to one side at most as far as `most` has it.
            systematic=most[name] + (e.leaning / spreads[name]).mean().item(),
            together=tuple(range(1 if name in (*SUMS, BIAS) else 2, flat(name, e.value).dim())),
        )
        for name, e in limits.items()
    }  # fmt: skip


def elements(inputs: Sequence[torch.Tensor]) -> Iterator[Inputs]:
    """The inputs of each element's own call."""
    return map(Inputs._make, zip(*Inputs.of_gate(*inputs), strict=True))


def upstream_of(w: HcSiteWorkload, one: Inputs) -> SiteGradients:
    """The upstream gradients as the operator gets them."""
    of = {name: getattr(one, name) for name in ("dresidual", "dy", "dpre", "dpost", "dcomb")}
    return SiteGradients(*given(w.unused, **of))


def public(workload: HcSiteWorkload, of: Collection[str], *inputs: torch.Tensor) -> Results:
    """The results by the public function and autograd, with a call for each element."""
    return stacked([one_public(workload, of, one) for one in elements(inputs)], of)


def one_public(w: HcSiteWorkload, of: Collection[str], one: Inputs) -> Results:
    leaves = {name: getattr(one, name) for name in ("f", "x", "post", "comb", "fn", "scale", "base")}
    leaves["pre_next"], norm_weight = one.weights, None
    if w.every_argument:
        leaves["f"], leaves["fn"], leaves["bias"], norm_weight = apart(w, one.f, one.fn)
    if w.own_weights:
        del leaves["pre_next"]
    leaves = {k: t.detach().requires_grad_() for k, t in leaves.items()}
    call = {"pre_next": None, "norm_weight": norm_weight, **leaves, **w.options}
    y, pre, new_post, new_comb, streams = hc_boundary(**call)
    results = streams, y, pre, new_post, new_comb
    by_name = dict(zip(VALUES, (t.detach() for t in results), strict=True))
    if {*of} <= {*VALUES}:
        return by_name
    # if nothing used the collapse, its weights have no gradient
    results, upstream = used(results, upstream_of(w, one))
    gradients = torch.autograd.grad(results, list(leaves.values()), upstream, materialize_grads=True)
    by_name |= dict(zip(map(OF_ARGUMENTS.get, leaves), gradients, strict=True))
    if norm_weight is not None:
        by_name["dfn"] = by_name["dfn"] / norm_weight
    return by_name | {name: by_name[name][None] for name in ("dscale", "dbase", BIAS) if name in by_name}


def run(workload: HcSiteWorkload, choices: Choices, of: Collection[str], *inputs: torch.Tensor) -> Results:
    """The results by hc_boundary's kernels, with launches for each element."""
    return stacked([one_launch(workload, choices, of, one) for one in elements(inputs)], of)


def one_launch(w: HcSiteWorkload, choices: Choices, of: Collection[str], one: Inputs) -> Results:
    update, site = Update(one.f, one.x, one.post, one.comb), SiteParameters(one.fn, one.scale, one.base)
    weights = None if w.own_weights else one.weights
    normed = site._replace(y_norm_weight=norm_for(choices, w, one.f.device))
    made = launch.forward(update, weights, normed, w.arguments, choices)
    by_name = dict(zip(VALUES, made, strict=False))
    if last.LAST in choices:
        by = by_name["pre"] if w.own_weights else weights
        by_name["y"] = last.forward(update, by, None, 1e-6, w.comb_order, choices[last.LAST])
    if choices.keys() & {*head.KERNELS}:
        of_pre = one.fn[: w.n], one.scale[:1], one.base[: w.n]
        eps = w.norm_eps, w.arguments.pre_eps, 1e-6
        by_name["y"] = head.forward(update, *of_pre, None, w.comb_order, *eps, choices=choices)
    if {*of} <= {*VALUES}:
        return by_name
    kept = Kept(made[0], site, weights, *made[5:], own=False)
    asked = ways.Asked(upstream_of(w, one), update, kept, w.arguments)
    *of_update, dfn, _, dweights, _ = ways.in_one_pass(asked, choices)
    if "dy" in w.unused.split():
        dweights = torch.zeros_like(weights)
    return by_name | dict(zip(GRADIENTS, (*of_update, dweights, dfn), strict=False))


def norm_for(choices: Choices, w: HcSiteWorkload, device: torch.device) -> torch.Tensor | None:
    """A norm's weight where FINISH is tested, which ends calls with a norm; `trials` tests their y."""
    return torch.ones(w.c, device=device) if launch.FINISH in choices else None


def stacked(each: list[Results], of: Collection[str]) -> Results:
    return {name: flat(name, torch.stack([one[name] for one in each])) for name in of}
