"""The largest errors of hc_boundary: hc_post's budget, and hc_site's for the streams as stored.

The inputs of `HcSiteWorkload.make_update` have so few bits that every product and sum of the new streams is
exact in float32.  So every correct implementation rounds and stores the same streams, and results that are
computed from unrounded streams differ by more than their budget.

The gradient of the new streams,
    G_o = dX'_o + weights_o dy + (r dmixes fn)_o + k <dmixes, mixes> X'_o,
is as in hc_site's budget without its last rounding.  hc_post's backward is linear in it: independent errors
are multiplied by the squares of its coefficients, errors that a token's columns share by the coefficients.
The budget is that of one pass; the parts, which round G, are tested in float32 only.

`of_pass` is that of a backward by itself, for given mixes and their upstream gradient.  Each entry of G
enters the results with an independent error, but r and <dmixes, mixes> belong to a token, and their errors
add up over its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from helion_sinkhorn.lab.mixes import budget as of_mixes
from helion_sinkhorn.lab.mixes.budget import Exact
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.post import budget as of_post
from helion_sinkhorn.lab.pre import budget as of_pre
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, chain, half_ulp
from helion_sinkhorn.lab.site.budget import Named, Site, limits, propagated
from helion_sinkhorn.lab.site.budget import dtype_of as dtype_of
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split import budget as of_split
from helion_sinkhorn.ops.mhc.post.reference import hc_post
from helion_sinkhorn.runtime.updates import Update

OF_UPDATE = ("df", "dx", "dpost", "dcomb")
RESULTS = ("streams", "y", "pre", "post", "comb", *OF_UPDATE, "dweights", "dfn", "dscale", "dbase")
OF_PASS = (*OF_UPDATE, "dfn", "dweights")
BIAS = "dbias"
"""The gradient of the bias, where a call has one: it is added to f, which the inputs have with it."""


@dataclass(frozen=True)
class Crossed(Site):
    """A Site of the new streams: x and dresidual are theirs.  All in float64.

    f (B, T, C), old (B, T, n, C), old_post and weights (B, T, n), old_comb (B, T, n, n); of_pre (B, T, n) the
    upstream gradient of pre.
    """

    f: torch.Tensor
    old: torch.Tensor
    old_post: torch.Tensor
    old_comb: torch.Tensor
    weights: torch.Tensor
    of_pre: torch.Tensor

    @property
    def dpre(self) -> torch.Tensor:
        return self.of_pre + super().dpre if self.workload.own_weights else self.of_pre

    def collapsing(self, made: Named) -> torch.Tensor:
        """The weights of the collapse."""
        return made["pre"] if self.workload.own_weights else self.weights

    @property
    def update(self) -> tuple[torch.Tensor, ...]:
        return self.f, self.old, self.old_post, self.old_comb

    @property
    def mixing(self) -> torch.Tensor:
        """comb by input and output stream."""
        return self.old_comb if self.workload.comb_order == "io" else self.old_comb.mT

    def back(self, grad: torch.Tensor) -> dict[str, torch.Tensor]:
        """OF_UPDATE from the gradient of the new streams: hc_post's backward."""
        return linear(grad, self.f, self.old, self.old_post, self.mixing, self.workload.comb_order)

    def back_of_variance(self, variance: torch.Tensor) -> dict[str, torch.Tensor]:
        """The variance of OF_UPDATE for independent errors in the entries of that gradient."""
        squares = (t.square() for t in (self.f, self.old, self.old_post, self.mixing))
        return linear(variance, *squares, self.workload.comb_order)

    def gradient_of_streams(self, made: Named, mixes: torch.Tensor) -> torch.Tensor:
        """hc_site's, whose collapse took pre in the place of the weights."""
        of_site = super().results(made, mixes)["dx"]
        return of_site + (self.collapsing(made) - made["pre"]).unsqueeze(-1) * self.dy.unsqueeze(-2)

    def results(self, made: Named, mixes: torch.Tensor) -> dict[str, torch.Tensor]:
        results = super().results(made, mixes) | self.back(self.gradient_of_streams(made, mixes))
        return results | {
            "streams": self.x, "pre": made["pre"],
            "y": (self.collapsing(made).unsqueeze(-1) * self.x).sum(-2),
            "dweights": (self.x * self.dy.unsqueeze(-2)).sum(-1), BIAS: results["df"].sum(1, keepdim=True),
        }  # fmt: skip


def linear(grad, f, old, post, mixing, order: str) -> dict[str, torch.Tensor]:
    dcomb = old @ grad.mT
    return {
        "df": (post.unsqueeze(-1) * grad).sum(-2), "dx": mixing @ grad,
        "dpost": (grad * f.unsqueeze(-2)).sum(-1), "dcomb": dcomb if order == "io" else dcomb.mT,
    }  # fmt: skip


class Inputs(NamedTuple):
    """The inputs of hc_boundary, of all elements or of one; x is the old streams."""

    x: torch.Tensor
    dresidual: torch.Tensor
    dy: torch.Tensor
    dpost: torch.Tensor
    dcomb: torch.Tensor
    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    f: torch.Tensor
    post: torch.Tensor
    comb: torch.Tensor
    weights: torch.Tensor
    dpre: torch.Tensor

    @classmethod
    def of_gate(cls, *everything: torch.Tensor) -> Inputs:
        """The tensors of a boundary among all inputs of the gate: its old streams take the place of x."""
        _, *site, x, f, post, comb, weights, dpre = everything
        return cls(x, *site, f, post, comb, weights, dpre)


def crossed(workload: HcSiteWorkload, *inputs: torch.Tensor) -> Crossed:
    """Crossed of `Inputs`."""
    x, *site, f, post, comb, weights, dpre = (t.detach().cpu().double() for t in inputs)
    streams = hc_post(f, x, post, comb, comb_order=workload.comb_order).to(workload.dtype).double()
    return Crossed(workload, streams, *site, f, x, post, comb, weights, dpre)


def results_of(workload: HcSiteWorkload) -> tuple[str, ...]:
    """The results of the call: a site's own weights have no gradient, and a missing bias has none."""
    names = RESULTS if not workload.own_weights else tuple(n for n in RESULTS if n != "dweights")
    return (*names, BIAS) if workload.every_argument else names


def evaluated(workload: HcSiteWorkload, *inputs: torch.Tensor) -> dict[str, Exact]:
    """All of `results_of`, for `Inputs`; sums over tokens are as in hc_site's budget."""
    site = crossed(workload, *inputs)
    made, projection, shape = site.made, site.projection, site.x.shape
    truth = made | site.results(made, projection["mixes"].value)
    weights = site.collapsing(made)
    collapse = of_pre.deviation(site.x, weights, site.dy)
    of_dpre = collapse["dpre"] if workload.own_weights else torch.zeros_like(site.dpre)
    spread = propagated(site, truth, of_dpre)
    variances = {name: t.square() for name, t in spread.items()}
    shared = of_split.shared(workload.of_split, truth, spread)
    variances |= {name: t.square() for name, t in shared.items() if name in RESULTS}

    dmixes = site.norm[0].square() * variances["dmixes"]
    dx, dfn = projection["dx"], projection["dfn"]
    weighted = weights.unsqueeze(-1) * site.dy.unsqueeze(-2)
    terms = site.dresidual.square() + weighted.square() + dx.value.view(shape).square()
    last = site.back_of_variance(dx.deviation.view(shape).square() + (UNIT * chain(4)) ** 2 * terms)
    of_pre_alone = variances["pre"] if workload.own_weights else torch.zeros_like(weights)
    of_weights = of_pre_alone.unsqueeze(-1) * site.dy.square().unsqueeze(-2)
    least = site.back_of_variance((dmixes @ site.fn.square()).view(shape) + of_weights)
    own = of_post.deviation(*site.update, site.gradient_of_streams(made, projection["mixes"].value),
                            comb_order=workload.comb_order)  # fmt: skip
    together = [site.back(t) for t in of_norm(site, made["dmixes"])]
    for t in (last, least, *together):
        t[BIAS] = t["df"].sum(1, keepdim=True)
    own[BIAS] = of_sum(own["df"], truth["df"])
    for name in (*OF_UPDATE, BIAS):
        variances[name] = torch.maximum(variances[name], least[name]) + last[name] + own[name].square()
        variances[name] = variances[name] + sum(t[name].square() for t in together)
    variances["dfn"] = torch.maximum(variances["dfn"], dmixes.mT @ site.streams.square())
    variances["dfn"] = variances["dfn"] + dfn.deviation.square()
    independent = (of_pre_alone.unsqueeze(-1) * site.x.square()).sum(-2)
    variances["y"] = torch.maximum(variances["y"], independent) + collapse["y"].square()
    variances["dweights"] = collapse["dpre"].square()
    variances["streams"] = torch.zeros_like(site.x)
    leaning = {"dfn": dfn.leaning, **leaning_back(site, dx.leaning.view(shape))}
    return limits(workload, results_of(workload), truth, variances, leaning)


def of_sum(deviation: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    """The deviation of a sum over tokens in float32, (B, 1, C), of terms with independent errors."""
    added = (UNIT * chain(terms.size(1)) * terms).square() + deviation.square()
    return added.sum(1, keepdim=True).sqrt()


def of_norm(site: Crossed, dmixes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Errors of the streams' gradient that all columns of a token share, element by element."""
    each, workload = [], site.workload.of_mixes
    for streams, g, fn in zip(site.x, dmixes, site.fn, strict=True):
        projection = of_mixes.evaluated(workload, streams.flatten(1)[None], g[None], fn[None])
        each.append(parts_of_projection(workload, projection, g, streams))
    return tuple(torch.stack(t) for t in zip(*each, strict=True))


def leaning_back(site: Crossed, leaning: torch.Tensor) -> dict[str, torch.Tensor]:
    """What errors to one side of the streams' gradient may become: its coefficients without their signs."""
    absolute = (t.abs() for t in (site.f, site.old, site.old_post, site.mixing))
    errors = linear(leaning, *absolute, site.workload.comb_order)
    return errors | {BIAS: errors["df"].sum(1, keepdim=True)}


def of_pass(
    workload: MixesWorkload, update: Update, dstreams, dy, dmixes, streams, weights, fn
) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The value in float64 and the largest error of each result of OF_PASS.

    The inputs are tokens (T, ...), each of the dtype in which it is given, and fn (M, n C).
    """
    given = update[:4]
    projection = of_mixes.evaluated(workload, streams.flatten(1)[None], dmixes[None], fn[None])
    grad, variance = upstream(dstreams, dy, streams, weights, projection["dx"])
    value = of_post.exact(*(t[None] for t in given), grad[None])
    own = of_post.deviation(*(t[None] for t in given), grad[None])
    (f, x, post, comb), wide = (t.double() for t in given), streams.double()
    of_norm, of_product = parts_of_projection(workload, projection, dmixes.double(), wide)
    weighted = {
        "df": (post.square().unsqueeze(1) @ variance).squeeze(1),
        "dx": comb.square() @ variance,
        "dpost": (variance @ f.square().unsqueeze(2)).squeeze(2)
        + sum((t @ f.unsqueeze(2)).squeeze(2).square() for t in (of_norm, of_product)),
        "dcomb": x.square() @ variance.mT + sum((x @ t.mT).square() for t in (of_norm, of_product)),
    }
    limits = {}
    for (name, t), like in zip(weighted.items(), given, strict=True):
        deviation = (own[name][0].square() + t).sqrt()
        limits[name] = value[name][0], SIGMAS * deviation + half_ulp(value[name][0], like.dtype)
    collapse = streams, weights, dy
    limits["dfn"] = projection["dfn"].value[0], projection["dfn"].budget[0]
    limits["dweights"] = of_pre.exact(*collapse)["dpre"], of_pre.error_budget(*collapse)["dpre"]
    return limits


def upstream(dstreams, dy, streams, weights, projection: Exact) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradient of the new streams (T, n, C) and the variance of its error in float32."""
    weighted = weights.double().unsqueeze(2) * dy.double().unsqueeze(1)
    product = projection.value.view(streams.shape)
    terms = dstreams.double().square() + weighted.square() + product.square()
    variance = projection.deviation.view(streams.shape).square() + (UNIT * chain(4)) ** 2 * terms
    return dstreams.double() + weighted + product, variance


def parts_of_projection(workload: MixesWorkload, projection: Mapping[str, Exact], dmixes, streams):
    """Errors (T, n, C) that all columns of a token share: of r and k <dmixes, mixes>, and of r alone."""
    size = streams[0].numel()
    mixes, of_r = projection["mixes"], of_mixes.variance_of_norm(size)
    mean = streams.flatten(1).square().mean(1)
    k = -1 / (mean + workload.norm_eps) / size
    along = (dmixes * mixes.value[0]).sum(1)
    off = (dmixes * mixes.deviation[0]).square().sum(1) + 5 * of_r * along.square()
    of_norm = (k * off.sqrt())[:, None, None] * streams
    product = projection["dx"].value.view(streams.shape) - (k * along)[:, None, None] * streams
    return of_norm, of_r**0.5 * product
