"""The test of an optimizer's step: the average of the gradient, and the weight that is updated.

The true results are those of the definition in float64, each rounded once.  The budgets are those of
`budget`, with one more rounding to the dtype of the weight, of the average or Nesterov's that is balanced.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from helion_sinkhorn.lab.balance import budget
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.lab.evidence import Choices, Results
from helion_sinkhorn.lab.rounding import UNIT, Rounding, half_ulp
from helion_sinkhorn.lab.truth import Truth
from helion_sinkhorn.ops.balance import eager
from helion_sinkhorn.ops.balance.launch import Launches
from helion_sinkhorn.ops.balance.passes import Average, step

EXACT = Rounding(0, unit=0.0)
TERM, SUM = 2.0, 1.0
"""Units of a product with the momentum, which is rounded itself, and of a sum."""


def results(workload: BalanceWorkload) -> tuple[str, ...]:
    """The names of what a step writes; without momentum there is no average."""
    return ("average", "weight") if workload.average.momentum > 0 else ("weight",)


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


def stepped(workload: BalanceWorkload, error: Rounding, *inputs: torch.Tensor) -> Results:
    """The results in float64 before they are stored, with a rounding error in each operation's result."""
    gradient, *average, weight = (t.double() for t in inputs)
    found, u = {}, gradient
    if average:
        found["average"], u = averaged(gradient, *average, workload.average, error)
        u = stored(u, workload.dtype, error)
    settings = workload.settings._replace(scale="none")
    balanced = budget.rounded(u, settings, error) if error.unit else budget.exact(u, settings)
    size = torch.tensor(size_of(workload)).double()
    return found | {"weight": error(weight - error(size * balanced, SUM), SUM)}


def truths(workload: BalanceWorkload, *inputs: torch.Tensor) -> dict[str, Truth]:
    exact, dtype = stepped(workload, EXACT, *inputs), workload.dtype
    limits = budget.limits(exact, lambda error: stepped(workload, error, *inputs), inputs[0].device, dtype)
    return {
        name: Truth.of(t, limits[name], dtype, gradient=False, together=(-2, -1)) for name, t in exact.items()
    }


def run(
    workload: BalanceWorkload, choices: Choices | None, of: Collection[str], *inputs: torch.Tensor
) -> Results:
    """The results by the passes of kernels or of PyTorch, in place on copies."""
    gradient, *moved = (t.clone(memory_format=torch.contiguous_format) for t in inputs)
    size = torch.full((1,), size_of(workload), device=gradient.device)
    passes = eager if choices is None else Launches(choices)
    step([moved[-1]], [gradient], moved[:-1], workload.average, size, workload.settings, [], passes)
    found = dict(zip(results(workload), moved, strict=True))
    return {name: found[name] for name in of}
