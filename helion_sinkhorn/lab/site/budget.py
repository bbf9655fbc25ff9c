"""The largest errors of hc_site: the error models of its three operators, one after another.

A run computes the site in float64 with the errors of float32, each of the size of its bound and with a random
sign: the errors of the mixes and of the collapse's gradient from the budgets of hc_mixes and hc_pre, and the
roundings of hc_split_sinkhorn's model.  Later steps are exact, so that a run shows the effect of earlier
errors on every result.  SAMPLES runs give its variance, and one more run the squared effect of truncations in
the matrix unit, which are all to one side.  The variance of the last step is added: the sum of y, the two
products of the projection's gradients, the four terms of dx.  A narrow result is rounded once.

Nothing here comes from a kernel.  `tests/contract/test_budgets.py` checks that the kernels' results stay
within the limits, and that these results times 1 + 2^-12 do not, or 1 + 2^-6 if they are narrow.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from helion_sinkhorn.lab.mixes import budget as of_mixes
from helion_sinkhorn.lab.mixes.budget import Exact
from helion_sinkhorn.lab.pre import budget as of_pre
from helion_sinkhorn.lab.rounding import SAMPLES, UNIT, Rounding, chain, variances
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload
from helion_sinkhorn.lab.split import budget as of_split

RESULTS = ("y", "post", "comb", "dx", "dfn", "dscale", "dbase")
NARROW = ("streams", "y", "df", "dx")
"""Results of the dtype of the streams, those of hc_boundary among them."""
Named = Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Site:
    """The inputs of a workload in float64, and the intermediate results of the steps.

    x, dresidual (B, T, n, C), dy (B, T, C), dpost (B, T, n), dcomb (B, T, n, n); fn (B, M, n C), scale (B, 3)
    and base (B, M) of each of B elements.
    """

    workload: HcSiteWorkload
    x: torch.Tensor
    dresidual: torch.Tensor
    dy: torch.Tensor
    dpost: torch.Tensor
    dcomb: torch.Tensor
    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor

    @property
    def streams(self) -> torch.Tensor:
        """x as the projection takes it."""
        return self.x.flatten(2)

    @property
    def norm(self) -> tuple[torch.Tensor, torch.Tensor]:
        """r and k (B, T, 1): mixes are r fn x, and the norm adds k <dmixes, mixes> x to dx."""
        mean, size = self.streams.square().mean(-1, keepdim=True), self.fn.size(-1)
        eps = self.workload.norm_eps
        if not self.workload.eps_outside:
            r = 1 / (mean + eps).sqrt()
            return r, -r.square() / size
        root = mean.sqrt()
        r = 1 / (root + eps)
        return r, torch.where(root > 0, -r / root / size, 0.0)

    @property
    def mixes(self) -> torch.Tensor:
        return self.norm[0] * (self.streams @ self.fn.mT)

    @property
    def dpre(self) -> torch.Tensor:
        """The gradient of the collapse's weights."""
        return (self.x * self.dy.unsqueeze(-2)).sum(-1)

    @functools.cached_property
    def made(self) -> dict[str, torch.Tensor]:
        """The results of hc_split_sinkhorn for the mixes, in float64."""
        return of_split.exact(self.workload.of_split, *self.of_split(self.mixes, self.dpre))

    @functools.cached_property
    def projection(self) -> dict[str, Exact]:
        """The mixes and the gradients of the projection, from hc_mixes's budget."""
        given = self.streams, self.made["dmixes"], self.fn
        return of_mixes.evaluated(self.workload.of_mixes, *given, device=self.x.device)

    def of_split(self, mixes: torch.Tensor, dpre: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The arguments of hc_split_sinkhorn's budget."""
        return mixes, dpre, self.dpost, self.dcomb, self.scale, self.base

    def results(self, made: Named, mixes: torch.Tensor) -> dict[str, torch.Tensor]:
        """RESULTS in float64 from the results of hc_split_sinkhorn for these mixes."""
        r, k = self.norm
        g = r * made["dmixes"]
        along = (made["dmixes"] * mixes).sum(-1, keepdim=True)
        of_projection = (g @ self.fn + k * along * self.streams).view(self.x.shape)
        return {
            "y": (made["pre"].unsqueeze(-1) * self.x).sum(-2), "post": made["post"], "comb": made["comb"],
            "dx": self.dresidual + made["pre"].unsqueeze(-1) * self.dy.unsqueeze(-2) + of_projection,
            "dfn": g.mT @ self.streams, "dscale": made["dscale"], "dbase": made["dbase"],
        }  # fmt: skip

    def run(self, mixes: torch.Tensor, dpre: torch.Tensor, rounding: Rounding) -> dict[str, torch.Tensor]:
        """RESULTS of a run, with its pre and dmixes."""
        made = of_split.model(self.workload.of_split, *self.of_split(mixes, dpre), rounding)
        return made | self.results(made, mixes)


def site_of(workload: HcSiteWorkload, *inputs: torch.Tensor, device: torch.device | str = "cpu") -> Site:
    """The Site of inputs of any dtype and device, in float64 on this device."""
    return Site(workload, *(t.detach().to(device, torch.float64) for t in inputs))


def evaluated(
    workload: HcSiteWorkload, *inputs: torch.Tensor, device: torch.device | str = "cpu"
) -> dict[str, Exact]:
    """All RESULTS, token by token except dfn (B, M, n C), dscale (B, 1, 3) and dbase (B, 1, M).

    Args:
        inputs: x, dresidual, dy, dpost, dcomb, fn, scale, base, as in `Site`.
        device: where this is computed, and stays.
    """
    site = site_of(workload, *inputs, device=device)
    made, projection = site.made, site.projection
    collapse = of_pre.deviation(site.x, made["pre"], site.dy)
    truth = made | site.results(made, projection["mixes"].value)

    spread = propagated(site, truth, collapse["dpre"])
    variances = floored(site, truth, {name: t.square() for name, t in spread.items()})
    variances["y"] = variances["y"] + collapse["y"].square()
    dx, dfn = projection["dx"], projection["dfn"]
    weighted = made["pre"].unsqueeze(-1) * site.dy.unsqueeze(-2)
    terms = site.dresidual.square() + weighted.square() + dx.value.square().view(site.x.shape)
    variances["dx"] = (
        variances["dx"] + dx.deviation.square().view(site.x.shape) + (UNIT * chain(4)) ** 2 * terms
    )
    variances["dfn"] = variances["dfn"] + dfn.deviation.square()
    leaning = {"dx": dx.leaning.view(site.x.shape), "dfn": dfn.leaning}
    return limits(workload, RESULTS, truth, variances, leaning)


def limits(
    workload: HcSiteWorkload, names: Iterable[str], truth: Named, variances: Named, leaning: Named
) -> dict[str, Exact]:
    """Exact of these results; only those named in `leaning` err to one side."""
    return {
        name: Exact.of(
            truth[name], variances[name], leaning.get(name, torch.zeros_like(truth[name])),
            dtype_of(workload, name), truth[name].shape,
        )
        for name in names
    }  # fmt: skip


def dtype_of(workload: HcSiteWorkload, name: str) -> torch.dtype:
    """The dtype of a result."""
    return workload.dtype if name in NARROW else torch.float32


def propagated(site: Site, truth: Named, deviation_of_dpre: torch.Tensor) -> dict[str, torch.Tensor]:
    """The deviation of every result, pre and dmixes, of errors before the last step."""
    mixes = site.projection["mixes"]

    def run(error: Rounding) -> Named:
        # other draws than those of the model
        draws = torch.Generator(site.x.device).manual_seed(error.seed + SAMPLES)
        shifted = off(mixes.value, mixes.deviation, draws), off(site.dpre, deviation_of_dpre, draws)
        return site.run(*shifted, error)

    variance, leant = variances(truth, run, site.x.device), leaning(site)
    return {name: (t + (leant[name] - truth[name]).square()).sqrt() for name, t in variance.items()}


def leaning(site: Site, rounding: Rounding | None = None) -> dict[str, torch.Tensor]:
    """A run with mixes truncated towards 0 as far as possible; without rounding it is otherwise exact."""
    rounding = rounding or Rounding.on(site.x.device, 0, unit=0.0)
    mixes = site.projection["mixes"]
    return site.run(mixes.value - mixes.leaning * mixes.value.sign(), site.dpre, rounding)


def off(value: torch.Tensor, deviation: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
    """A value with an error of its deviation, with a random sign."""
    up = torch.rand(value.shape, generator=draws, device=draws.device) < 0.5
    return torch.where(up, value + deviation, value - deviation)


def floored(site: Site, truth: Named, variances: Named) -> dict[str, torch.Tensor]:
    """Variances of RESULTS with lower bounds beside their own SAMPLES.

    The variances of sums are at least those that independent errors of pre and dmixes would give.
    Coefficients and sums over tokens share theirs, as in hc_split_sinkhorn's budget.
    """
    pre, dmixes = variances["pre"], site.norm[0].square() * variances["dmixes"]
    of_dx = pre.unsqueeze(-1) * site.dy.square().unsqueeze(-2)
    least = {
        "y": (pre.unsqueeze(-1) * site.x.square()).sum(-2),
        "dx": of_dx + (dmixes @ site.fn.square()).view(site.x.shape),
        "dfn": dmixes.mT @ site.streams.square(),
    }
    deviations = {name: t.sqrt() for name, t in variances.items()}
    shared = of_split.shared(site.workload.of_split, truth, deviations)
    own = {name: torch.maximum(variances[name], t) for name, t in least.items()}
    return {name: own[name] if name in own else shared[name].square() for name in RESULTS}
