"""What the functions of hc_split_sinkhorn take together: its options, and the gradients of its results."""

from __future__ import annotations

from typing import NamedTuple

import torch

from helion_sinkhorn.runtime.wanted import Some


class SplitOptions(NamedTuple):
    """The options of `hc_split_sinkhorn` in the order of its torch operators; pre_eps is never None."""

    n: int
    """The number of streams, hc_mult."""
    n_iters: int
    eps: float
    post_mult: float
    pre_eps: float
    post_eps: float
    comb_order: str


class CoefficientGradients(NamedTuple):
    """The upstream gradients of pre, post and comb; None counts as 0."""

    dpre: Some
    dpost: Some
    dcomb: Some

    def with_pre(self, more: torch.Tensor) -> CoefficientGradients:
        """These gradients with another one of pre, (T, n), added."""
        dpre = more if self.dpre is None else self.dpre.reshape(more.shape) + more
        return self._replace(dpre=dpre)
