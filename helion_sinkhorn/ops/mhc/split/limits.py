"""The limits of the kernels of hc_split_sinkhorn."""

from __future__ import annotations

from collections.abc import Callable

from helion_sinkhorn.ops.sinkhorn.scaling import segment_length
from helion_sinkhorn.ops.sinkhorn.space import REGISTER_HISTORY_STEPS


def beyond_kernels(n: int, n_iters: int, eps: float) -> Callable[[], str] | None:
    """A function that says which limit of the kernels a call exceeds; None if it exceeds none.

    Without eps nothing bounds the scaling vectors, which overflow if they are not absorbed in time.
    """
    if n == 1:
        return lambda: "the kernels take 2 to 16 streams, hc_mult is 1"
    most = REGISTER_HISTORY_STEPS + 1 if eps > 0 else segment_length(n, n)
    if n_iters <= most:
        return None
    streams = f"{'' if eps > 0 else ' without eps'} for {n} streams"
    return lambda: f"the kernels take up to {most} iterations{streams}, sinkhorn_iters is {n_iters}"
