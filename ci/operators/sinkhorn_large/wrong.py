"""Correct implementations of large matrices, in both forms, and wrong ones."""

from __future__ import annotations

import functools

import torch

from ci.gate import columns, wrong
from ci.gate.arithmetic import Arithmetic, keep_bits, truncated
from ci.gate.wrong import Run, Wrong, everywhere, is_float32, narrow
from ci.operators.sinkhorn_large.steps import EXACT, RESULTS, Steps, pytorch, right, specification
from helion_sinkhorn.lab.sinkhorn.large.workloads import LargeWorkload

GRADIENTS = RESULTS[1:]
VENDORS = {
    "nvidia": Steps(columns.tiles, columns.in_order, machine=Arithmetic(exp_ulps=2.0)),
    "amd": Steps(columns.tiles_one_by_one, columns.programs, machine=Arithmetic(exp_ulps=1.0)),
}
BASELINE = pytorch
GOOD: dict[str, Run] = {
    "rounded once from float64": EXACT,
    "the specification in float64": specification(),
    "PyTorch float32": pytorch,
    "the CPU path": right,
    "kernels' steps": Steps(),
    "blocks of 32 rows": Steps(block=32),
    "blocks of one row": Steps(block=1),
    "relative to the mean of a row": Steps(top=lambda x: x.mean(-1)),
    **{f"{vendor} functions": steps for vendor, steps in VENDORS.items()},
    **{name: Steps(total, total) for name, total in columns.SUMS.items()},
}
ROWS = "large_rows"


def exactly(**how) -> Steps:
    return Steps(dtype=torch.float64, **how)


def several(w: LargeWorkload) -> bool:
    """More than one iteration."""
    return w.n_iters > 1


def has_marginals(w: LargeWorkload) -> bool:
    return not w.eps


def shows_eps(w: LargeWorkload) -> bool:
    """A relative change of 1e-6 is a thousandth of the last place of a narrow result."""
    return w.eps > 0 and is_float32(w)


def grows(w: LargeWorkload) -> bool:
    """u and v would leave the range of float32."""
    return w.eps > 0 and (max(w.n, w.m) / min(w.n, w.m)) ** (w.n_iters - 1) > 2.0**128


def shows_rounding(w: LargeWorkload) -> bool:
    """Float32, and no entry of 1 where rounding cancels."""
    return is_float32(w) and w.logits != "identity_like"


def with_padding(x: torch.Tensor) -> torch.Tensor:
    """The largest entry of a row and of zeros beside it."""
    return x.amax(-1).clamp(min=0.0)


def padded_lanes(t: torch.Tensor) -> torch.Tensor:
    """The sum of a row with three entries of 1 beside it."""
    return t.sum(-1) + (3.0 if t.size(-1) > 8 else 0.0)


def without_last_tile(t: torch.Tensor) -> torch.Tensor:
    """The sum of a row but for its last entries, of a part of a column whole."""
    return t[..., :-8].sum(-1) if t.size(-1) > 8 else t.sum(-1)


def without_last_block(parts: torch.Tensor, t: int) -> torch.Tensor:
    return parts[..., :-1]


class Stale:
    """The last part is the one of the launch before."""

    def __init__(self) -> None:
        self.before: torch.Tensor | None = None

    def __call__(self, parts: torch.Tensor, t: int) -> torch.Tensor:
        before, self.before = self.before, parts
        if before is None or t == 0 or before.shape != parts.shape:
            return parts
        return torch.cat([parts[..., :-1], before[..., -1:]], -1)


call = functools.partial(wrong.called, EXACT)


given = ("x", "log_rows", "log_columns", "dy")
WRONG = [
    Wrong("one iteration missing", call(n_iters=lambda w: w.n_iters - 1), RESULTS, several),
    Wrong("the other side first", call(first=lambda w: "cols" if w.first == "rows" else "rows"), RESULTS,
          everywhere),
    Wrong("the last block of rows dropped", exactly(parts=without_last_block), RESULTS, everywhere),
    Wrong("the last block of rows dropped in the backward", exactly(parts_back=without_last_block),
          GRADIENTS, everywhere),
    Wrong("a part of the launch before", lambda w, *given: exactly(parts=Stale())(w, *given),
          RESULTS, lambda w: w.n_iters > 2),
    Wrong("padded lanes in a maximum", Steps(top=with_padding), RESULTS, lambda w: w.below > 0),
    Wrong("padded lanes in a maximum, logits near zero", Steps(top=with_padding), RESULTS, ROWS,
          hidden="any shift gives the same rows until an exponential underflows"),
    Wrong("padded lanes in a row's sum", exactly(rows=padded_lanes), RESULTS, everywhere),
    Wrong("the last tile of a long line left out", exactly(rows=without_last_tile), RESULTS,
          lambda w: w.wide),
    Wrong("a column that loses in every row relative to nothing", Steps(most=lambda x: 0.0 * x[..., 0, :]),
          RESULTS, lambda w: w.logits == "column_below"),
    Wrong("u and v of a rectangle left to grow", Steps(rescaled=False), RESULTS, grows),
    Wrong("eps left out", specification(eps=0.0), RESULTS, shows_eps),
    Wrong("one look at the first sums", exactly(first_looks=1), GRADIENTS, ROWS,
          hidden="what rounding leaves of these sums is within the budget of dX; float64 has none"),
    Wrong("no look at the last sums", exactly(last_look=False), GRADIENTS, ROWS,
          hidden="what rounding leaves of these sums is within the budget of dX; float64 has none"),
    Wrong("no look at the first sums", exactly(first_looks=0), GRADIENTS, everywhere),
    Wrong("the marginal of the row before", wrong.given(EXACT, given, log_rows=lambda t: t.roll(1, -1)),
          RESULTS, has_marginals),
    Wrong("terms of the last iteration alone", exactly(kept=lambda t: t < 1), GRADIENTS, several),
    Wrong("a marginal's gradient without the first iteration", exactly(of_rows=lambda sums: sum(sums[:-1])),
          ("drows", "dcolumns"), has_marginals),
    Wrong("potentials of 16 bits", Steps(stored=lambda t: keep_bits(t, 15)), RESULTS, shows_rounding),
    Wrong("exponential of 12 bits", Steps(machine=Arithmetic(exp_ulps=2.0**11)), RESULTS, shows_rounding),
    Wrong("result truncated", wrong.narrowed(EXACT, truncated), ("P", "dX"), narrow),
    *wrong.damages(EXACT, RESULTS),
    *wrong.of_any(right, ROWS, "P", 3),
]  # fmt: skip
