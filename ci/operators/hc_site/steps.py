"""hc_site step by step in PyTorch: the steps of hc_mixes and hc_split_sinkhorn, the collapse, and one dx.

Each run takes (workload, *inputs) as `evidence.NAMES` has them, an element of the batch a group of tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results
from ci.operators.hc_mixes import steps as of_mixes
from ci.operators.hc_split_sinkhorn import steps as of_split
from helion_sinkhorn import reference
from helion_sinkhorn.lab.mixes.workloads import MixesWorkload
from helion_sinkhorn.lab.site.budget import RESULTS, dtype_of
from helion_sinkhorn.lab.site.evidence import NAMES, public
from helion_sinkhorn.lab.site.workloads import HcSiteWorkload

Terms = tuple[torch.Tensor, ...]


def in_order(terms: Terms) -> torch.Tensor:
    """The norm's and the projection's first, as autograd may have them."""
    return functools.reduce(torch.add, terms)


def projection_last(terms: Terms) -> torch.Tensor:
    """Loaded values are added up first, as in the kernel."""
    residual, weighted, projected = terms
    return projected + (residual + weighted)


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    mixes: of_mixes.Steps = field(default_factory=of_mixes.Steps)
    split: of_split.Steps = field(default_factory=of_split.Steps)
    machine: Arithmetic = PLAIN
    """Its `dot` adds the streams of y."""
    columns: Change = at_once
    """The sum that makes the gradient of the collapse's weights."""
    dpre: Change = same
    """Applied to that gradient on its way to the mixes."""
    weights: Callable[[Results], torch.Tensor] = lambda made: made["pre"]
    """What collapses the streams, of what hc_split_sinkhorn made."""
    weights_back: Callable[[Results], torch.Tensor] = lambda made: made["pre"]
    """What dy is multiplied by."""
    of_product: Callable[[HcSiteWorkload, torch.Tensor], torch.Tensor] | None = None
    """The mixes that the coefficients are made of, where they are others than the norm's."""
    total: Callable[[Terms], torch.Tensor] = projection_last
    """The sum of dresidual, the collapse's and the projection's."""
    term: Callable[[HcSiteWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to each of the three before they are added."""
    last: Callable[[HcSiteWorkload, torch.Tensor], torch.Tensor] = lambda w, t: t
    """Applied to what is rounded to the dtype of the streams."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: HcSiteWorkload, *inputs: torch.Tensor) -> Results:
        x, dresidual, dy, dpost, dcomb, fn, scale, base = (t.to(self.dtype) for t in inputs[: len(NAMES)])
        wide = of_one_dtype(w)
        mixes = self.mixes(wide, x, dpost.new_zeros(*dpost.shape[:2], w.m), fn)["mixes"]
        given = mixes if self.of_product is None else self.of_product(w, mixes)
        dpre = self.dpre(self.columns(x * dy.unsqueeze(-2)))
        made = self.split(w.of_split, given, dpre, dpost, dcomb, scale, base)
        back = self.mixes(wide, x, made["dmixes"], fn)
        weighted = self.weights_back(made).to(self.dtype).unsqueeze(-1) * dy.unsqueeze(-2)
        terms = dresidual, weighted, back["dx"].view(x.shape).to(self.dtype)
        y = self.machine.dot(x, self.weights(made).to(self.dtype).unsqueeze(-1), -2).squeeze(-2)
        results = {
            "y": self.last(w, y), "post": made["post"], "comb": made["comb"],
            "dx": self.last(w, self.total(tuple(self.term(w, t) for t in terms))).flatten(2),
            "dfn": back["dfn"], "dscale": made["dscale"], "dbase": made["dbase"],
        }  # fmt: skip
        return {name: t.to(dtype_of(w, name)) for name, t in results.items()}


def of_one_dtype(w: HcSiteWorkload) -> MixesWorkload:
    """The projection of a site whose dx is not rounded yet."""
    return replace(w.of_mixes, dtype=torch.float32)


exactly = functools.partial(
    Steps, mixes=of_mixes.Steps(exactly=True), split=of_split.exactly(), dtype=torch.float64
)
EXACT = functools.lru_cache(maxsize=2)(exactly())
"""Every step in float64, its result rounded once: a fault made of it has next to no rounding error."""


@functools.lru_cache(maxsize=1)
def pytorch(w: HcSiteWorkload, *inputs: torch.Tensor) -> Results:
    """The specification in float32 and autograd, element by element."""
    each = []
    for x, dresidual, dy, dpost, dcomb, *parameters in zip(
        *(t.float() for t in inputs[: len(NAMES)]), strict=True
    ):
        leaves = [t.detach().requires_grad_() for t in (x, *parameters)]
        y, post, comb, residual = reference.hc_site(*leaves, **w.of_reference)
        upstream = dresidual, dy, dpost, dcomb
        dx, dfn, dscale, dbase = torch.autograd.grad((residual * 1, y, post, comb), leaves, upstream)
        each.append((y.detach(), post.detach(), comb.detach(), dx.flatten(1), dfn, dscale[None], dbase[None]))
    stacked = zip(RESULTS, map(torch.stack, zip(*each, strict=True)), strict=True)
    return {name: t.to(dtype_of(w, name)) for name, t in stacked}


@functools.lru_cache(maxsize=1)
def right(w: HcSiteWorkload, *inputs: torch.Tensor) -> Results:
    """The CPU path of float32 streams, which rounds nothing on the way; dx and y are rounded at the end."""
    single, wide = [t.float() for t in inputs[: len(NAMES)]], replace(w, dtype=torch.float32)
    return {name: t.to(dtype_of(w, name)) for name, t in public(wide, RESULTS, *single).items()}
