"""hc_boundary in PyTorch, for correct implementations and for wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.wrong import Results, Run, Wrong
from helion_sinkhorn import reference
from helion_sinkhorn.lab.site.boundary import budget
from helion_sinkhorn.lab.site.boundary.evidence import (
    GRADIENTS,
    PREFIX,
    VALUES,
    bias_of,
    elements,
    flat,
    named,
    norm_weight_of,
)
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload

BIAS, OF_UPDATE = budget.BIAS, budget.OF_UPDATE


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
) -> Results:
    """The specification in this dtype and autograd, element by element, results rounded once."""
    if not workload.crosses:
        return {}
    each = [one(workload, places, dtype, *element) for element in elements(given)]
    results = {name: torch.stack([e[name] for e in each]) for name in each[0]}
    return named({n: flat(n, t).to(budget.dtype_of(workload, n)) for n, t in results.items()})


def one(w: HcSiteWorkload, places: Places, dtype, *element: torch.Tensor) -> Results:
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
    of_leaves = torch.autograd.grad(results, leaves, upstream, retain_graph=True, allow_unused=True)
    gradients = dict(zip(GRADIENTS, of_leaves, strict=True))
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
    by_name = dict(zip(VALUES, (t.detach() for t in results), strict=True))
    by_name |= dict(zip(gradients, filled, strict=True))
    for name in ("dscale", "dbase"):
        by_name[name] = by_name[name].unsqueeze(0)
    by_name[BIAS] = by_name["df"].sum(0, keepdim=True)
    return {n: (places.last or {}).get(n, lambda t: t)(by_name[n]) for n in budget.results_of(w)}


def single(workload: HcSiteWorkload, *given: torch.Tensor) -> Results:
    """`parts` in float32."""
    return run(workload, *given, dtype=torch.float32)


GOOD: dict[str, Run] = {"hc_boundary in float64": run, "hc_boundary in float32": single}


def unrounded(streams, exact, old):
    return exact


def of_old(streams, exact, old):
    return old


def planted(
    name: str, *of: str, narrow: bool = False, own: bool | None = None, every: bool = False, **places
) -> Wrong:
    """A fault at one place; `narrow` where it shows only in what is rounded, `own` where the collapse does or
    does not take the site's own weights, `every` where it is a fault of arguments that may be left out."""

    def where(w: HcSiteWorkload) -> bool:
        has = w.dtype != torch.float32 or not narrow, w.every_argument or not every
        return w.crosses and all(has) and own in (None, w.own_weights)

    return Wrong(
        f"hc_boundary: {name}", functools.partial(run, places=Places(**places)),
        tuple(PREFIX + n for n in of), where,
    )  # fmt: skip


def without_last(t: torch.Tensor) -> torch.Tensor:
    """The last token's zero."""
    return torch.cat([t[:-1], torch.zeros_like(t[-1:])])


WRONG = [
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
