"""Correct implementations of sinkhorn_balance and wrong ones."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, bfloat16, half_up, keep_bits, truncated
from ci.gate.damage import edited
from ci.gate.wrong import Run, Wrong, everywhere, is_float32, narrow
from ci.operators.balance.steps import EXACT, Steps, pytorch, right
from helion_sinkhorn.lab.balance.budget import RESULTS
from helion_sinkhorn.lab.balance.workloads import BalanceWorkload
from helion_sinkhorn.ops.balance.options import BalanceOptions

VENDORS = {
    "nvidia": Steps(columns.tiles, columns.programs, Arithmetic(multiplies=True, reciprocal_ulps=1.0)),
    "amd": Steps(columns.tiles_one_by_one, columns.programs),
}
BASELINE = pytorch
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "PyTorch float32": pytorch,
    "the CPU path": right,
    "iterates stored": Steps(stored=columns.same),
    "a product with the reciprocal of a norm": VENDORS["nvidia"],
    **{name: Steps(total, total) for name, total in columns.SUMS.items()},
}
MODEL, EPS, NARROW = (f"balance_{name}" for name in ("model", "eps", "bf16"))


def several(w: BalanceWorkload) -> bool:
    """More than one step."""
    return w.settings.steps > 1


def masks(w: BalanceWorkload) -> bool:
    """Some rows are below the threshold, and not zero."""
    return w.settings.zero_row_threshold > 0 and w.values in ("model", "sparse")


def mean_square(w: BalanceWorkload) -> bool:
    return w.settings.scale == "row_rms"


def exactly(**how) -> Steps:
    return Steps(dtype=torch.float64, **how)


def with_settings(change: Callable[[BalanceOptions], BalanceOptions]) -> Run:
    """Right for other options."""
    return wrong.called(EXACT, settings=lambda w: change(w.settings))


def times(factor: Callable[[BalanceWorkload, torch.Tensor], float]) -> Run:
    """The result times a number of the update's."""
    return lambda w, update: {"u": (EXACT(w, update)["u"].double() * factor(w, update)).to(w.dtype)}


def turned(options: BalanceOptions) -> BalanceOptions:
    return options._replace(first="cols" if options.first == "rows" else "rows")


def without_masks(options: BalanceOptions) -> BalanceOptions:
    return options._replace(zero_row_threshold=0.0)


def lost(where: object) -> columns.Change:
    """A sum without some of its terms."""
    return lambda t: t.sum(-1) - t[..., where].sum(-1)


WRONG = [
    Wrong("the last step missing", with_settings(lambda s: s._replace(steps=s.steps - 1)), RESULTS, several),
    Wrong("the other step first", with_settings(turned), RESULTS, several),
    Wrong("no row masked", with_settings(without_masks), RESULTS, masks),
    Wrong("no eps", with_settings(lambda s: s._replace(eps=1e-20)), RESULTS, EPS),
    Wrong("the factor left out", times(lambda w, t: w.n**-0.5), RESULTS, mean_square),
    Wrong("a factor where none is asked", times(lambda w, t: w.n**0.5), RESULTS,
          lambda w: not mean_square(w)),
    Wrong("the last two columns left out of rows", exactly(rows=lost(slice(-2, None))), RESULTS, everywhere),
    Wrong("the last row left out of columns", exactly(columns=lost(slice(-1, None))), RESULTS, several),
    Wrong("squares of columns added in bfloat16", Steps(columns=lambda t: columns.in_order(t, bfloat16)),
          RESULTS, several),
    Wrong("squares in bfloat16", Steps(term=lambda t: bfloat16(t.square())), RESULTS, everywhere),
    Wrong("iterates of 16 bits", Steps(stored=lambda t: keep_bits(t, 15)), RESULTS, is_float32),
    Wrong("scales in bfloat16", Steps(scale=bfloat16), RESULTS, everywhere),
    Wrong("one scale off by 2^-10", exactly(scale=edited(lambda t: t[:, -1, -1].mul_(1 + 2.0**-10))), RESULTS,
          is_float32),
    Wrong("result truncated", exactly(last=lambda w, t: truncated(w, t.float())), RESULTS, narrow),
    Wrong("ties away from zero at the store", exactly(last=lambda w, t: half_up(w, t.float())), RESULTS,
          NARROW, hidden="one in 2^16 float32 numbers is a tie"),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, MODEL, "u"),
]  # fmt: skip
