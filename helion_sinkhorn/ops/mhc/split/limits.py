"""How far the kernels of hc_split_sinkhorn go."""

from __future__ import annotations

from collections.abc import Callable

from helion_sinkhorn.ops.sinkhorn.scaling import segment_length
from helion_sinkhorn.ops.sinkhorn.space import REGISTER_HISTORY_STEPS


def beyond_kernels(n: int, n_iters: int, eps: float) -> Callable[[], str] | None:
    """What says which limit of the kernels a call is beyond; None if it is beyond none.

    Without eps nothing bounds the scaling vectors, and they last only until they have to be absorbed.
    """
    if n == 1:
        return lambda: "the kernels take 2 to 16 streams, hc_mult is 1"
    most = REGISTER_HISTORY_STEPS + 1 if eps > 0 else segment_length(n, n)
    if n_iters <= most:
        return None
    streams = f"{'' if eps > 0 else ' without eps'} for {n} streams"
    return lambda: f"the kernels take up to {most} iterations{streams}, sinkhorn_iters is {n_iters}"
