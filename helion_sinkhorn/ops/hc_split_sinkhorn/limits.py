"""How far the kernels of hc_split_sinkhorn go."""

from __future__ import annotations

from helion_sinkhorn.ops.sinkhorn.scaling import segment_length
from helion_sinkhorn.ops.sinkhorn.space import REGISTER_HISTORY_STEPS


def beyond_kernels(n: int, n_iters: int, eps: float) -> str:
    """Which limit of the kernels a call is beyond; empty if none.

    Without eps nothing bounds the scaling vectors, and they last only until they have to be absorbed.
    """
    if n == 1:
        return "the kernels take 2 to 16 streams, hc_mult is 1"
    most = REGISTER_HISTORY_STEPS + 1 if eps > 0 else segment_length(n, n)
    if n_iters <= most:
        return ""
    without = "" if eps > 0 else " without eps"
    return f"the kernels take up to {most} iterations{without} for {n} streams, sinkhorn_iters is {n_iters}"
