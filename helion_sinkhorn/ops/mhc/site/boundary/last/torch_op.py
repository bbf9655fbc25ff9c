"""The torch operator of hc_last by its kernel: `helion_sinkhorn::hc_last` returns y.

It has no gradient: a call that needs one is made of hc_post and hc_pre.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import Implementations, define
from helion_sinkhorn.runtime.updates import Update

NAME = "hc_last"


def by(launches: str) -> Callable[..., torch.Tensor]:
    """What returns y by the launches of a module, or writes it into `out`; see mhc.last.hc_last."""
    implementations = Implementations(launches)

    def forward(f, x, post, comb, bias, *rest, **out):
        if x.numel() == 0:
            return empty_result(f, x)
        with implementations.launching(x) as launch:
            return launch.forward(Update(f, x, post, comb, bias), *rest, **out)

    return forward


def empty_result(f, x, *rest):
    return x.new_empty((*x.shape[:-2], x.size(-1)))


forward = by("helion_sinkhorn.ops.mhc.site.boundary.last.launch")
call = define(
    NAME,
    "(Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, Tensor weights, Tensor? norm_weight, "
    "float norm_eps, str comb_order) -> Tensor",
    forward, empty_result, 7,
)  # fmt: skip
roles(NAME, "ttttptp -> t", empty_result, before(1))
