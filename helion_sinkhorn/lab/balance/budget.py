"""The largest errors of a balanced update and of a step: of products, sums of squares, roots and quotients.

The steps run in float64 with a random error of the size of each rounding, several times; the budget is five
deviations of the results, and half a unit in the last place of a narrow result.  A step also rounds to the
dtype of the weight what is balanced, the average or Nesterov's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, Rounding, half_ulp, tree, variances
from helion_sinkhorn.ops.balance import reference
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average

RESULTS = ("u",)
Named = dict[str, torch.Tensor]
EXACT = Rounding(0, unit=0.0)
PIECE_ENTRIES = 1 << 24
"""Entries of an update whose squares are computed at a time."""
QUOTIENT = 4.0
"""Units of roundoff of a scale: of the sum with eps, the root, the quotient and the product before it."""
TERM, SUM = 2.0, 1.0
"""Units of a product with the momentum, which is rounded itself, and of a sum."""


def results(workload: BalanceWorkload) -> tuple[str, ...]:
    """The names of what a call or a step writes; without momentum there is no average."""
    if workload.average is None:
        return RESULTS
    return ("average", "weight") if workload.average.momentum > 0 else ("weight",)


def exact(update: torch.Tensor, settings: BalanceOptions) -> torch.Tensor:
    """The balanced update in float64."""
    return reference.sinkhorn_balance(update.double(), **settings._asdict())


def rounded(update: torch.Tensor, settings: BalanceOptions, error: Rounding) -> torch.Tensor:
    """The balanced update by scales of rows and columns, with a rounding error in each operation's result."""
    norms = update.norm(dim=-1, keepdim=True)
    live = norms > settings.zero_row_threshold * norms.mean(-2, keepdim=True)
    if settings.zero_row_threshold == 0:
        live = torch.ones_like(live)
    x = torch.where(live, update, 0.0)
    scales = {-1: torch.ones_like(x[..., :1]), -2: torch.ones_like(x[..., :1, :])}
    step = max(1, PIECE_ENTRIES // x[..., :1, :].numel())
    axes = (-1, -2) if settings.first == "rows" else (-2, -1)
    for k in range(settings.steps):
        axis = axes[k % 2]
        # an error of u counts twice in its square, and an error of a sum half in its root
        units = 4.0 + tree(x.size(axis))
        parts = zip(scales[-1].split(step, -2), x.split(step, -2), strict=True)
        sums = [error((d * rows * scales[-2]).square(), units).sum(axis, keepdim=True) for d, rows in parts]
        norm = (torch.cat(sums, -2) if axis == -1 else sum(sums)).sqrt()
        scales[axis] = error(scales[axis] / torch.where(norm == 0, 1.0, norm + settings.eps), QUOTIENT)
    factor = x.size(-1) ** 0.5 if settings.scale == "row_rms" else 1.0
    # the product with the columns' scales, with the rows', and with the factor
    return error(scales[-1] * x * scales[-2] * factor, 3.0)


def size_of(workload: BalanceWorkload) -> float:
    """A step about half as large as the weights, so that errors of both show."""
    return 0.5 * workload.n**0.5


def averaged(
    gradient: torch.Tensor, average: torch.Tensor, of: Average, error: Rounding
) -> tuple[torch.Tensor, torch.Tensor]:
    """(the new average, the update to balance) before they are stored, with a rounding in each operation."""
    terms = error((1.0 - of.momentum) * gradient, TERM)
    mean = error(error(of.momentum * average, TERM) + terms, SUM)
    return mean, error(error(of.momentum * mean, TERM) + terms, SUM) if of.nesterov else mean


def stored(t: torch.Tensor, dtype: torch.dtype, error: Rounding) -> torch.Tensor:
    """t with an error of half a unit in the last place of a dtype."""
    half = half_ulp(t, dtype)
    return error(t) + error.unit / UNIT * (error(half, 1.0 / UNIT) - half)


def evaluated(workload: BalanceWorkload, error: Rounding, *inputs: torch.Tensor) -> Named:
    """The results in float64 before they are stored, with a rounding error in each operation's result."""
    u, *of_step = (t.double() for t in inputs)
    tensors, settings = {}, workload.settings
    if of_step:
        *average, weight = of_step
        if average:
            tensors["average"], u = averaged(u, *average, workload.average, error)
            u = stored(u, workload.dtype, error)
        settings = settings._replace(scale="none")
    balanced = rounded(u, settings, error) if error.unit else exact(u, settings)
    if not of_step:
        return {"u": balanced}
    size = torch.tensor(size_of(workload)).double()
    return tensors | {"weight": error(weight - error(size * balanced, SUM), SUM)}


def error_budget(update: torch.Tensor, settings: BalanceOptions, dtype: torch.dtype) -> torch.Tensor:
    """The largest error that an implementation may have for this update, entry by entry, in this dtype."""
    truth, x = {"u": exact(update, settings)}, update.double()
    return limits(truth, lambda error: {"u": rounded(x, settings, error)}, x.device, dtype)["u"]


def limits(exact: Named, run: Callable[[Rounding], Named], device: torch.device, dtype: torch.dtype) -> Named:
    """The largest error of each result in this dtype, from what runs with random errors differ by."""
    # a few samples may all be near the truth, but one rounding always occurs
    variance = variances(exact, run, device)
    sigma = {name: torch.maximum(variance[name].sqrt(), UNIT * t.abs()) for name, t in exact.items()}
    return {name: SIGMAS * sigma[name] + half_ulp(t, dtype) for name, t in exact.items()}
