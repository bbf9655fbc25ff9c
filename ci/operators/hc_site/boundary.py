"""hc_boundary as the gate judges it, beside hc_site on workloads that cross.

Inputs are random: the sublayer's output, the streams, both sets of coefficients, the weights of the collapse,
and an upstream gradient for every result.  Names are those of its budget behind PREFIX.

A bias and a weight of the norm go to the public function alone (`apart`), and leave every sum as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate import choices, gate
from ci.gate.gate import Fault
from ci.operators.hc_site.leaning import systematic
from helion_sinkhorn import reference
from helion_sinkhorn.lab.site.boundary import budget
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.mhc.boundary import hc_boundary
from helion_sinkhorn.ops.mhc.site.space import SiteCall
from helion_sinkhorn.runtime.kernel import Choice

PREFIX = "boundary "
SUMS, OF_UPDATE = budget.RESULTS[-3:], budget.OF_UPDATE
VALUES = budget.RESULTS[:5]
GRADIENTS = budget.RESULTS[5:]
BIAS = budget.BIAS
COMPUTES = {
    "hc_boundary_split": ("pre", "post", "comb"), "hc_boundary_forward": VALUES,
    "hc_boundary_backward": (*OF_UPDATE, "dweights"), "hc_boundary_sums": ("dpost", "dcomb", "dweights"),
    "hc_boundary_projection": ("dfn",),
}  # fmt: skip
"""The results that show what each kernel did."""
OF_ARGUMENTS = {
    "f": "df", "x": "dx", "post": "dpost", "comb": "dcomb", "pre_next": "dweights", "fn": "dfn",
    "scale": "dscale", "base": "dbase", "bias": BIAS,
}  # fmt: skip
"""The gradient of each argument."""
Tensors = tuple[torch.Tensor, ...]


def named(found: dict) -> dict:
    return {PREFIX + name: t for name, t in found.items()}


def flat(name: str, t: torch.Tensor) -> torch.Tensor:
    """Results with streams of a token as a row for each, sums over tokens as one."""
    return t.flatten(2) if name in ("streams", "dx") else t


def bias_of(w: HcSiteWorkload) -> torch.Tensor:
    """Eighths of up to 2: f less them has 8 bits still."""
    return (7 * torch.arange(w.c) % 33 - 16) / 8


def norm_weight_of(w: HcSiteWorkload) -> torch.Tensor:
    """Powers of two."""
    return torch.exp2(torch.arange(w.n * w.c) % 3 - 1.0)


def apart(w: HcSiteWorkload, f: torch.Tensor, fn: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(f, fn, bias, norm weight) of a call with the same f + bias and fn times the weight."""
    bias, weight = bias_of(w).to(f.device), norm_weight_of(w).to(fn.device)
    return (f.float() - bias).to(f.dtype), fn / weight, bias, weight


def truths(workload: HcSiteWorkload, *given: torch.Tensor) -> dict[str, gate.Truth]:
    """The equations in float64."""
    given = ordered(*given)
    limits = budget.evaluated(workload, *given)
    spreads = {n: gate.spread(e.value, e.budget, budget.dtype_of(workload, n)) for n, e in limits.items()}
    most = systematic(budget.crossed(workload, *given), limits, spreads)
    found = {}
    for name, e in limits.items():
        value, limit, spread = (flat(name, t) for t in (e.value, e.budget, spreads[name]))
        scale = gate.noticeable(value) if name in VALUES else gate.largest(value)
        axes = tuple(range(1 if name in (*SUMS, BIAS) else 2, value.dim()))
        dtype = budget.dtype_of(workload, name)
        found[name] = gate.Truth(value, limit, spread, scale, most[name], len(value), axes, dtype)
    return named(found)


def ordered(x, dresidual, dy, dpost, dcomb, fn, scale, base, old, f, post, comb, weights, dpre) -> Tensors:
    """The gate's inputs as the budget has them: the streams that are crossed take the place of the site's."""
    return old, dresidual, dy, dpost, dcomb, fn, scale, base, f, post, comb, weights, dpre


@dataclass(frozen=True)
class Places:
    """Where hc_boundary may go wrong."""

    f: Callable = lambda w, t: t
    fn: Callable = lambda w, t: t
    comb: Callable = lambda t: t
    post: Callable = lambda t: t
    stored: Callable = lambda streams, exact, old: streams
    """The streams that are returned."""
    collapsed: Callable = lambda streams, exact, old: streams
    """The streams of y."""
    projected: Callable = lambda streams, exact, old: streams
    """The streams of the mixes' products."""
    squared: Callable = lambda streams, exact, old: streams
    """The streams of the mixes' norm."""
    weights: Callable | None = None
    """The weights of the collapse, from what is given and the site's own."""
    back: dict[str, float] | None = None
    """Factors of "dresidual", "dy", "dpre" and those of the "coefficients", on the way to `parts`."""
    parts: tuple[str, ...] = OF_UPDATE
    """The gradients that `back` is in."""
    last: dict[str, Callable] | None = None
    """Applied to results."""


RIGHT = Places()


def run(
    workload: HcSiteWorkload, *given: torch.Tensor, places: Places = RIGHT, dtype=torch.float64
) -> gate.Results:
    """The specification in this dtype and autograd, element by element, results rounded once."""
    if not workload.crosses:
        return {}
    each = [one(workload, places, dtype, *element) for element in zip(*ordered(*given), strict=True)]
    found = {name: torch.stack([e[name] for e in each]) for name in each[0]}
    return named({n: flat(n, t).to(budget.dtype_of(workload, n)) for n, t in found.items()})


def one(w: HcSiteWorkload, places: Places, dtype, *element: torch.Tensor) -> gate.Results:
    old, dresidual, dy, dpost, dcomb, fn, scale, base, f, post, comb, weights, dpre = (
        t.to(dtype) for t in element
    )
    leaves = [t.detach().requires_grad_() for t in (f, old, post, comb, weights, fn, scale, base)]
    f, x, post, comb, weights, *parameters = leaves
    mixed = places.f(w, f), x, places.post(post), places.comb(comb)
    exact = reference.hc_post(*mixed, comb_order=w.comb_order).flatten(-2)
    rounded = exact + (exact.detach().to(w.dtype).to(dtype) - exact.detach())
    of = rounded, exact, x.flatten(-2)
    stored, collapsed, projected, squared = (
        place(*of).unflatten(-1, x.shape[-2:])
        for place in (places.stored, places.collapsed, places.projected, places.squared)
    )
    options = {**w.of_reference}
    norm_eps, outside = options.pop("norm_eps"), options.pop("eps_outside")
    product = projected.flatten(-2) @ places.fn(w, parameters[0]).mT
    mean = squared.flatten(-2).square().mean(-1, keepdim=True)
    r = 1 / (mean.sqrt() + norm_eps) if outside else (mean + norm_eps).rsqrt()
    made = reference.hc_split_sinkhorn(r * product, *parameters[1:], w.n, **options)
    taken = made[0] if w.own_weights else weights
    y = reference.hc_pre(collapsed, taken if places.weights is None else places.weights(weights, made[0]))
    results, upstream = (stored, y, *made), (dresidual, dy, dpre, dpost, dcomb)
    found = torch.autograd.grad(results, leaves, upstream, retain_graph=True, allow_unused=True)
    gradients = dict(zip(GRADIENTS, found, strict=True))
    if places.back is not None:
        of_mixes = places.back.get("coefficients", 1.0)
        of_mixes = [places.back.get("dpre", of_mixes), of_mixes, of_mixes]
        factors = [*(places.back.get(k, 1.0) for k in ("dresidual", "dy")), *of_mixes]
        less = [a * g for a, g in zip(factors, upstream, strict=True)]
        other = torch.autograd.grad(results, leaves, less, allow_unused=True)
        gradients |= {n: t for n, t in zip(GRADIENTS, other, strict=True) if n in places.parts}
    # what a fault does not use has no gradient
    filled = (
        torch.zeros_like(t) if g is None else g for g, t in zip(gradients.values(), leaves, strict=True)
    )
    found = dict(zip(VALUES, (t.detach() for t in results), strict=True))
    found |= dict(zip(gradients, filled, strict=True))
    for name in ("dscale", "dbase"):
        found[name] = found[name].unsqueeze(0)
    found[BIAS] = found["df"].sum(0, keepdim=True)
    return {n: (places.last or {}).get(n, lambda t: t)(found[n]) for n in budget.results_of(w)}


def single(workload: HcSiteWorkload, *given: torch.Tensor) -> gate.Results:
    """The same in float32."""
    return run(workload, *given, dtype=torch.float32)


def upstream_of(w: HcSiteWorkload, dresidual, dy, dpre, dpost, dcomb) -> list[torch.Tensor | None]:
    """As the operator has them."""
    return choices.given(w.unused, dresidual=dresidual, dy=dy, dpre=dpre, dpost=dpost, dcomb=dcomb)


def as_served(workload: HcSiteWorkload, name: str, *given: torch.Tensor) -> torch.Tensor:
    """One result of the public function and autograd, an element a call."""
    name, each = name.removeprefix(PREFIX), []
    for element in zip(*ordered(*given), strict=True):
        old, dresidual, dy, dpost, dcomb, fn, scale, base, f, post, comb, weights, dpre = element
        leaves = {"f": f, "x": old, "post": post, "comb": comb, "pre_next": weights, "fn": fn,
                  "scale": scale, "base": base}  # fmt: skip
        norm_weight = None
        if workload.every_argument:
            leaves["f"], leaves["fn"], leaves["bias"], norm_weight = apart(workload, f, fn)
        if workload.own_weights:
            del leaves["pre_next"]
        leaves = {k: t.detach().requires_grad_() for k, t in leaves.items()}
        call = {"pre_next": None, "norm_weight": norm_weight, **leaves, **workload.options}
        y, pre, new_post, new_comb, streams = hc_boundary(**call)
        results = streams, y, pre, new_post, new_comb
        if name in VALUES:
            each.append(results[VALUES.index(name)].detach())
            continue
        upstream = upstream_of(workload, dresidual, dy, dpre, dpost, dcomb)
        given = choices.used(results, upstream)
        # of a collapse that nothing used, the weights have no gradient
        gradients = torch.autograd.grad(given[0], list(leaves.values()), given[1], materialize_grads=True)
        found = dict(zip(map(OF_ARGUMENTS.get, leaves), gradients, strict=True))
        if norm_weight is not None:
            found["dfn"] = found["dfn"] / norm_weight
        each.append(found[name])
    stacked = torch.stack(each)
    return flat(name, stacked.unsqueeze(1) if name in ("dscale", "dbase", BIAS) else stacked)


def on_gpu(workload: HcSiteWorkload, name: str, choice: Choice, *given: torch.Tensor) -> torch.Tensor:
    """One result of its kernels, an element a launch, this choice for one of them."""
    from helion_sinkhorn.ops.mhc.site.boundary import launch
    from helion_sinkhorn.ops.mhc.site.boundary.backward import launch as backward

    each = []
    for element in zip(*ordered(*given), strict=True):
        old, dresidual, dy, dpost, dcomb, fn, scale, base, f, post, comb, weights, dpre = element
        update, site, chosen = (f, old, post, comb), (weights, fn, scale, base), {choice.kernel: choice}
        made = launch.forward(*update, None, *site, *workload.arguments, choices=chosen)
        if name in VALUES:
            each.append(made[VALUES.index(name)])
            continue
        upstream, kept = upstream_of(workload, dresidual, dy, dpre, dpost, dcomb), (*update, *site, made[0])
        *found, dfn, _, dweights = backward.in_one_pass(
            upstream, (*kept, *made[5:]), None, *workload.arguments, choices=chosen
        )
        if "dy" in workload.unused.split():
            dweights = torch.zeros_like(weights)
        each.append(dict(zip(GRADIENTS, (*found, dweights, dfn), strict=False))[name])
    return flat(name, torch.stack(each))


def candidates(
    workload: HcSiteWorkload, call: SiteCall | None, device, *given: torch.Tensor
) -> list[gate.Candidate]:
    """What is served, and its kernels with each of their configs; without a call the CPU path.

    Parts round the gradient of narrow streams, and their OF_UPDATE is judged in float32 alone.
    """
    narrow = workload.dtype != torch.float32
    names = [n for n in budget.results_of(workload) if not (narrow and n in OF_UPDATE)]
    if call is None:
        return choices.on_cpu([PREFIX + n for n in names], as_served, workload)
    served = [
        gate.Candidate("hc_boundary", name, {}, "all served", True,
                       functools.partial(as_served, workload, name))
        for name in (PREFIX + n for n in names)
    ]  # fmt: skip
    if workload.own_weights:
        # by the kernels of hc_post and of hc_site
        return served
    computes = {kernel: [PREFIX + n for n in found] for kernel, found in COMPUTES.items()}
    return served + choices.candidates(
        computes, call, len(given[0]) * workload.tokens, device,
        lambda name, choice: functools.partial(on_gpu, workload, name.removeprefix(PREFIX), choice),
    )  # fmt: skip


GOOD: dict[str, gate.Run] = {"hc_boundary in float64": run, "hc_boundary in float32": single}


def unrounded(streams, exact, old):
    return exact


def of_old(streams, exact, old):
    return old


def planted(
    name: str, *of: str, narrow: bool = False, own: bool | None = None, every: bool = False, **places
) -> Fault:
    """A fault at one place; `narrow` where it shows only in what is rounded, `own` where the collapse does or
    does not take the site's own weights, `every` where it is a fault of arguments that may be left out."""

    def where(w: HcSiteWorkload) -> bool:
        has = w.dtype != torch.float32 or not narrow, w.every_argument or not every
        return w.crosses and all(has) and own in (None, w.own_weights)

    return Fault(
        f"hc_boundary: {name}", functools.partial(run, places=Places(**places)),
        tuple(PREFIX + n for n in of), where,
    )  # fmt: skip


def without_last(t: torch.Tensor) -> torch.Tensor:
    """The last token's zero."""
    return torch.cat([t[:-1], torch.zeros_like(t[-1:])])


FAULTS = [
    planted("old streams mixed by the transpose", "streams", "y", "dx", comb=lambda t: t.mT),
    planted("old streams not mixed", "streams", "y", "comb",
            comb=lambda t: torch.eye(t.size(-1), dtype=t.dtype).expand_as(t) + 0 * t),
    planted("old streams mixed by a neighbour's comb", "streams", "dx", comb=lambda t: t.roll(1, 0)),
    planted("post of a neighbour", "streams", "df", post=lambda t: t.roll(1, 0)),
    planted("collapse of unrounded streams", "y", narrow=True, collapsed=unrounded),
    planted("products of unrounded streams", "comb", narrow=True, projected=unrounded),
    planted("squares of unrounded streams", "pre", "comb", narrow=True, squared=unrounded),
    planted("collapse of the old streams", "y", "dweights", collapsed=of_old),
    planted("products of the old streams", "pre", "post", "comb", "dfn", projected=of_old),
    planted("squares of the old streams", "pre", "post", "comb", squared=of_old),
    planted("collapse by its own weights", "y", "dweights", weights=lambda given, own: own, own=False),
    planted("collapse by the weights of the site before", "y", "dfn", weights=lambda given, own: given,
            own=True),
    planted("own weights: the gradient of y not passed to the mixes", "dfn", "dscale", "dbase", "df", "dx",
            weights=lambda given, own: own.detach(), own=True),
    planted("own weights: pre's own gradient lost where y has one", "dfn", "dscale", "dbase", "df",
            back={"dpre": 0.0}, parts=GRADIENTS, own=True),
    planted("the bias left out", "streams", "dpost", f=lambda w, t: t - bias_of(w), every=True),
    planted("the norm's weight left out", "pre", "post", "comb", fn=lambda w, t: t / norm_weight_of(w),
            every=True),
    planted("the bias's gradient of 16 bits", BIAS, last={BIAS: lambda t: t.bfloat16().to(t.dtype)},
            every=True),
    planted("gradient of pre_next zero", "dweights", last={"dweights": torch.zeros_like}),
    planted("gradient of pre_next without the last token", "dweights", last={"dweights": without_last}),
    planted("gradient of pre_next cut to 16 bits", "dweights",
            last={"dweights": lambda t: t.bfloat16().to(t.dtype)}),
    *(
        planted(f"{name} without the gradient of {what}", name, back={factor: 0.0}, parts=(name,))
        for name in OF_UPDATE
        for factor, what in (("dresidual", "the streams"), ("dy", "y"), ("coefficients", "the mixes"))
    ),
    *(
        planted(f"{name} of the streams' gradient alone", name, back={"dy": 0.0, "coefficients": 0.0},
                parts=(name,))
        for name in ("df", "dpost")
    ),
]  # fmt: skip
