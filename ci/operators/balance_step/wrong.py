"""Correct steps of an optimizer along balanced gradients and wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, rounded_down, truncated
from ci.gate.wrong import Results, Run, Wrong, everywhere, is_float32, narrow
from ci.operators.balance.steps import Steps
from ci.operators.balance.wrong import masks, several, without_masks
from ci.operators.balance_step.steps import EXACT, Step, averaged, right
from helion_sinkhorn.lab.balance.budget import size_of
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.options import BalanceOptions
from helion_sinkhorn.ops.balance.passes import Average

VENDORS = {
    "nvidia": Step(Steps(columns.tiles, columns.programs, Arithmetic(multiplies=True, reciprocal_ulps=1.0))),
    "amd": Step(Steps(columns.tiles_one_by_one, columns.programs)),
}
BASELINE = Step()
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": BASELINE,
    "the CPU path": right,
    "what is balanced is not rounded": Step(ahead=columns.same),
    "a product with the reciprocal of a norm": VENDORS["nvidia"],
    **{name: Step(Steps(total, total)) for name, total in columns.SUMS.items()},
}
MODEL = "balance_step_model"
AVERAGE, WEIGHT = ("average",), ("weight",)


def averages(w: BalanceWorkload) -> bool:
    return w.average.momentum > 0


def looks_ahead(w: BalanceWorkload) -> bool:
    return w.average.nesterov


def momentum_alone(w: BalanceWorkload) -> bool:
    return averages(w) and not looks_ahead(w)


def rounds_once(w: BalanceWorkload) -> bool:
    """The weight is narrow, and nothing else is rounded to its dtype."""
    return narrow(w) and not averages(w)


def long_size(w: BalanceWorkload) -> bool:
    """The size of the step is none of bfloat16, which a narrow weight would hide."""
    return is_float32(w) and torch.tensor(size_of(w)).bfloat16().item() != size_of(w)


def exactly(**how) -> Step:
    return Step(Steps(dtype=torch.float64), **how)


def with_average(change: Callable[[Average], Average]) -> Run:
    """Right for another average."""
    return wrong.called(EXACT, average=lambda w: change(w.average))


def with_settings(change: Callable[[BalanceOptions], BalanceOptions]) -> Run:
    """Right for other options."""
    return wrong.called(EXACT, settings=lambda w: change(w.settings))


def to_bfloat16(t: torch.Tensor) -> torch.Tensor:
    return bfloat16(t.float()).double()


def of_the_old_average(w, gradient, average):
    mean, _ = averaged(w, gradient, average)
    return mean, w.average.momentum * average + (1 - w.average.momentum) * gradient


def not_averaged(w, gradient, average):
    return averaged(w, gradient, average)[0], gradient


def average_in_bfloat16(w, gradient, average):
    mean, u = averaged(w, gradient, average)
    return bfloat16(mean.float()).double(), u


def average_rounded_down(w, gradient, average):
    mean, u = averaged(w, gradient, average)
    return rounded_down(w, mean.float()).double(), u


def not_written(w: BalanceWorkload, *inputs: torch.Tensor) -> Results:
    return EXACT(w, *inputs) | {"average": inputs[1].clone()}


def of_the_gradient(w: BalanceWorkload, *inputs: torch.Tensor) -> Results:
    """The average of what Nesterov made of it."""
    u = averaged(w, *(t.double() for t in inputs[:2]))[1]
    return EXACT(w, *inputs) | {"average": u.to(w.dtype)}


WRONG = [
    Wrong("Nesterov's update of the old average", exactly(average=of_the_old_average), WEIGHT, looks_ahead),
    Wrong("Nesterov dropped", with_average(lambda a: a._replace(nesterov=False)), WEIGHT, looks_ahead),
    Wrong("Nesterov where none is asked", with_average(lambda a: a._replace(nesterov=True)), WEIGHT,
          momentum_alone),
    Wrong("Nesterov's update stored as the average", of_the_gradient, AVERAGE, looks_ahead),
    Wrong("the gradient balanced, not its average", exactly(average=not_averaged), WEIGHT, averages),
    Wrong("the average not written", not_written, AVERAGE, averages),
    Wrong("the average in bfloat16", exactly(average=average_in_bfloat16), AVERAGE,
          lambda w: averages(w) and w.dtype != torch.bfloat16),
    Wrong("the average rounded down", exactly(average=average_rounded_down), AVERAGE,
          lambda w: averages(w) and narrow(w)),
    Wrong("what is balanced in bfloat16", exactly(ahead=to_bfloat16), WEIGHT,
          lambda w: is_float32(w) and averages(w)),
    Wrong("the size ignored", exactly(size=lambda w: 1.0), WEIGHT, everywhere),
    Wrong("the size in bfloat16", exactly(size=lambda w: torch.tensor(size_of(w)).bfloat16().item()), WEIGHT,
          long_size),
    Wrong("a step uphill", exactly(iterate=torch.neg), WEIGHT, everywhere),
    Wrong("the last step missing", with_settings(lambda s: s._replace(steps=s.steps - 1)), WEIGHT, several),
    Wrong("no row masked", with_settings(without_masks), WEIGHT, masks),
    Wrong("masked rows written", exactly(masked=torch.zeros_like), WEIGHT, masks),
    Wrong("the step rounded before the weight", exactly(iterate=to_bfloat16), WEIGHT, rounds_once),
    Wrong("the step rounded to bfloat16 beside float32", exactly(iterate=to_bfloat16), WEIGHT, is_float32),
    Wrong("the weight truncated", exactly(last=lambda w, t: truncated(w, t.float())), WEIGHT, rounds_once),
    *wrong.damages(EXACT, WEIGHT),
    *wrong.of_any(right, MODEL, "weight"),
]  # fmt: skip
