"""Records of a site: its parameters, its options, gradients, and what its backward needs."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.ops.mhc.mixes.api import check_options
from helion_sinkhorn.ops.mhc.split.api import check_constants, check_iterations, has_kernels
from helion_sinkhorn.ops.mhc.split.given import Comb
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients, SplitOptions
from helion_sinkhorn.ops.mhc.streams import check_norm_eps
from helion_sinkhorn.runtime.checks import as_int
from helion_sinkhorn.runtime.wanted import Some


class SiteParameters(NamedTuple):
    """The tensors of a site, as `hc_site` takes them."""

    fn: torch.Tensor
    scale: torch.Tensor
    base: torch.Tensor
    norm_weight: torch.Tensor | None = None
    y_norm_weight: torch.Tensor | None = None
    comb: Comb | None = None
    """A comb that is given, or a map that makes it of logits; fn has 2n rows, and one more for each logit."""


class SiteOptions(NamedTuple):
    """The options of `hc_site` by their names."""

    sinkhorn_iters: int = 20
    eps: float = 1e-6
    norm_eps: float = 1e-6
    post_mult: float = 2.0
    pre_eps: float | None = None
    post_eps: float = 0.0
    comb_order: str = "io"
    precision: str = "float32"
    eps_outside: bool = False
    y_norm_eps: float = 1e-6
    form: str = "deepseek"

    def checked(self) -> SiteOptions:
        """The options as the operators take them, pre_eps never None; raise as the operators do."""
        iterations = as_int(self.sinkhorn_iters)
        check_iterations(iterations)
        # raises for an unknown form
        has_kernels(self.form, iterations)
        check_options(self.norm_eps, self.precision, self.eps_outside)
        check_constants(self.eps, self.post_mult, self.pre_eps, self.post_eps, self.comb_order)
        check_norm_eps("y_norm_eps", self.y_norm_eps)
        pre_eps = self.eps if self.pre_eps is None else self.pre_eps
        numbers = map(float, (self.eps, self.norm_eps, self.post_mult, pre_eps, self.post_eps))
        return SiteOptions(iterations, *numbers, *self[6:9], float(self.y_norm_eps), self.form)

    @property
    def of_site(self) -> tuple[int | float | str, ...]:
        """The options that the torch operators of a site take, in their order; their form is "deepseek"."""
        return self[:10]

    @property
    def has_kernels(self) -> bool:
        """Whether the kernels make a comb with these options."""
        return has_kernels(self.form, self.sinkhorn_iters)

    def of_split(self, n: int) -> SplitOptions:
        """The options of `hc_split_sinkhorn` for n streams."""
        gates = self.post_mult, self.pre_eps, self.post_eps
        return SplitOptions(n, self.sinkhorn_iters, self.eps, *gates, self.comb_order)


class SiteGradients(NamedTuple):
    """The upstream gradients of a site's streams, their collapse and its coefficients; None counts as 0."""

    dstreams: Some
    dy: Some
    dpre: Some
    dpost: Some
    dcomb: Some

    @property
    def of_coefficients(self) -> CoefficientGradients:
        return CoefficientGradients(*self[2:])


class Kept(NamedTuple):
    """What the kernels of a site's forward took and made that its backward needs."""

    streams: torch.Tensor
    site: SiteParameters
    """Without a comb, and with its norm_weight in fn."""
    weights: torch.Tensor
    """The weights of the collapse, (..., n)."""
    mixes: torch.Tensor
    norms: torch.Tensor
    own: bool
    """Whether the weights are the site's own pre, as in V4, whose gradient flows into the mixes."""
