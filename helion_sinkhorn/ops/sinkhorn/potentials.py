"""sinkhorn_potentials(...): the logarithms of u and v instead of P."""

from __future__ import annotations

from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn import distributed
from helion_sinkhorn.ops.sinkhorn.api import MOST_ITERS, Options, served_by
from helion_sinkhorn.ops.sinkhorn.large import marginals
from helion_sinkhorn.ops.sinkhorn.large.marginals import Transport
from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE
from helion_sinkhorn.runtime.checks import check_int


def sinkhorn_potentials(
    logits: torch.Tensor,
    n_iters: int = 20,
    *,
    first: str = "rows",
    temperature: float = 1.0,
    log_row_marginals: torch.Tensor | None = None,
    log_col_marginals: torch.Tensor | None = None,
    row_lengths: torch.Tensor | None = None,
    col_lengths: torch.Tensor | None = None,
    group: Any = None,
    implementation: str = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """The potentials f and g of `sinkhorn` in its log form: P = exp(X / temperature + f + g).

    Args:
        logits: (..., n, m), as in `sinkhorn`.
        n_iters: T, at least 1.
        first: "rows" or "cols", the side whose step comes first.
        temperature: the logits are divided by it, a float from 1e-37 to 1e37.
        log_row_marginals: logarithms of the sums of the rows, (..., n); see `sinkhorn`.
        log_col_marginals: logarithms of the sums of the columns, (..., m).
        row_lengths: how many rows each matrix has; f is -inf in the others.
        col_lengths: how many columns each matrix has; g is -inf in the others.
        group: ranks that share the rows, as in `sinkhorn`.  Each rank gets f of its rows, and all get g,
            whose gradients are added up over the ranks.
        implementation: as in `sinkhorn`.

    Returns:
        f (..., n) and g (..., m), float32, or float64 for float64 logits; -inf where a marginal is zero.
        Both have exact gradients.

    Numerical policy, errors and source: as for `sinkhorn`.
    """
    n_iters = check_int("n_iters", n_iters, 1, MOST_ITERS)
    of = Transport(temperature, log_row_marginals, log_col_marginals, row_lengths, col_lengths)
    parts = distributed.shared(logits, group, first, implementation, "exact", of)
    if parts is not None:
        if parts.like is not None:
            raise NotImplementedError(
                "sinkhorn_potentials takes no DTensor whose rows or columns are sharded; pass .to_local() of "
                "sharded rows and group"
            )
        implementation = "pytorch"
    serves = served_by(logits, Options(n_iters, 0.0, "log", first), implementation, True)
    of.check(logits, "log", "exact")
    ranks = ALONE if parts is None else parts.ranks
    if parts is not None and parts.by_kernels:
        serves = "helion"
    _, f, g = marginals.run(logits, of, n_iters, 0.0, first, serves, logits.dtype, ranks)
    return f, g
