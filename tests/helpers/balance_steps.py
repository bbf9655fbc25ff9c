"""Steps of optimizers against their definition in float64, rounded once."""

from __future__ import annotations

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average

NESTEROV, PLAIN, NONE = Average(0.95, True), Average(0.9, False), Average(0.0, False)
SINKGD = BalanceOptions(10, 0.0, scale="none")
USUAL, WHOLE = 0.02, 1.0
"""Root mean squares of what is subtracted from weights of 1: of training, and as large as they are."""
AS_ROUNDED = 1.2
"""The largest ratio of the error to that of the definition rounded once, both as root mean squares."""
DRAWN = ("normal", torch.float32), ("peaked", torch.float32), ("model", torch.float32)
DRAWN += ("normal", torch.bfloat16), ("peaked", torch.bfloat16), ("model", torch.bfloat16)
DRAWN += ("normal", torch.float16), ("peaked", torch.float16)


def drawn(
    values: str, dtype: torch.dtype, average: Average, m: int = 41, n: int = 20
) -> tuple[torch.Tensor, ...]:
    """(the gradient, its average if there is momentum, the weight), (2, m, n)."""
    return BalanceWorkload("", 2, frozenset(), "", n, m, dtype, values, average=average).make_inputs()


def defined(
    average: Average, options: BalanceOptions, size: float, *given: torch.Tensor
) -> list[torch.Tensor]:
    """[the average if there is one, the weight] after a step of this root mean square, in float64."""
    gradient, *averages, weight = (t.double() for t in given)
    momentum, rest, u = average.momentum, 1.0 - average.momentum, gradient
    for k, a in enumerate(averages):
        averages[k] = u = momentum * a + rest * gradient
        if average.nesterov:
            u = momentum * u + rest * gradient
    return [*averages, weight - size * reference.sinkhorn_balance(u, **options._asdict())]


def assert_as_rounded_once(found: torch.Tensor, exact: torch.Tensor) -> None:
    rounded = exact.to(found.dtype)
    error, least = ((t.double() - exact).square().mean().sqrt() for t in (found, rounded))
    assert error <= AS_ROUNDED * least, (error / least).item()
