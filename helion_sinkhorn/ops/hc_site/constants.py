"""Constants: the numbers and options of hc_site, as its torch operators take them."""

from __future__ import annotations

from typing import NamedTuple


class Constants(NamedTuple):
    """The options of `hc_site` by their names, sinkhorn_iters as n_iters, and pre_eps never None."""

    n_iters: int
    eps: float
    norm_eps: float
    post_mult: float
    pre_eps: float
    post_eps: float
    comb_order: str
    precision: str
    eps_outside: bool

    @property
    def of_split(self) -> tuple[int, float, float, float, float, str]:
        """The arguments of hc_split_sinkhorn's launcher."""
        return self.n_iters, self.eps, self.post_mult, self.pre_eps, self.post_eps, self.comb_order
