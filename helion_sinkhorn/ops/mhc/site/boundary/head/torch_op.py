"""The torch operator of hc_last with a head by its kernels: `helion_sinkhorn::hc_last_head` returns y.

It has no gradient: a call that needs one is made of hc_post, hc_mixes and hc_pre.
"""

from __future__ import annotations

from helion_sinkhorn.ops.mhc.site.boundary.last.torch_op import by, empty_result
from helion_sinkhorn.runtime.tokens import before, roles
from helion_sinkhorn.runtime.torch_op import define

NAME = "hc_last_head"
forward = by("helion_sinkhorn.ops.mhc.site.boundary.head.launch")
call = define(
    NAME,
    "(Tensor f, Tensor x, Tensor post, Tensor comb, Tensor? bias, Tensor fn, Tensor scale, Tensor base, "
    "Tensor? norm_weight, str comb_order, float head_norm_eps, float head_eps, float norm_eps) -> Tensor",
    forward, empty_result, 9,
)  # fmt: skip
roles(NAME, "ttttppppp -> t", empty_result, before(1))
