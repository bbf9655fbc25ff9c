"""Launches of the deepseek form, forward and backward: an iteration reads the logits once."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import Calls, Stack, State, place
from helion_sinkhorn.ops.sinkhorn.scaling import rescaling
from helion_sinkhorn.runtime.launch import Tensors

COLUMNS = "sinkhorn_large_eps_columns"


def iterations(calls: Calls, of: State, n_iters: int) -> None:
    """Compute base, and u and v of every iteration."""
    x, us, vs, eps, count = calls.x, of.fs, of.gs, of.eps, len(of.fs)
    rho = rescaling(*x.shape[1:], eps, n_iters - 1)
    part = calls.rows("sinkhorn_large_eps_first", x, of.base, us[0], values=(eps,))
    ones = torch.ones_like(vs[0])
    calls.launch(COLUMNS, part, ones, ones, vs[0], values=(eps, part.size(1), False))
    if n_iters == 1:
        return
    part = calls.part("sinkhorn_large_eps_step")
    step = calls.sequence(
        "sinkhorn_large_eps_step", x, of.base, us[0], Stack(us), Stack(vs), Stack(us), part,
        values=(eps, rho),
    )  # fmt: skip
    columns = calls.sequence(
        COLUMNS, part, Stack(vs), ones, Stack(vs), values=(eps / rho, part.size(1), False)
    )  # fmt: skip
    for t in range(1, n_iters):
        before, now = place(t - 1, count), place(t, count)
        step(before, before, now)
        columns(before, now)


def taken_back(
    calls: Calls, of: State, dy: torch.Tensor, own: Tensors, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    """Compute the vectors of the terms that each iteration subtracts from the gradient.

    They are rows (T, B, n), negative except the first, and columns (T, B, m).
    """
    x, us, vs, eps, last = calls.x, of.fs, of.gs, of.eps, len(of.fs) - 1
    rho = rescaling(*x.shape[1:], eps, last)
    nothing = torch.zeros_like(vs[0])

    def gather(part: torch.Tensor, t: int) -> None:
        calls.launch(COLUMNS, part, nothing, vs[t], columns[t], values=(0.0, part.size(1), True))

    gather(calls.rows("sinkhorn_large_eps_sums", x, dy, of.base, us[0], us[last], values=(eps,)), last)
    if not last:
        return
    part = calls.rows(
        "sinkhorn_large_eps_turn", x, dy, of.base, us[0], us[last], vs[last], vs[last - 1], columns[last],
        rows[last], values=(eps, rho),
    )  # fmt: skip
    gather(part, last - 1)
    if last == 1:
        return
    part = calls.part("sinkhorn_large_eps_back")
    back = calls.sequence(
        "sinkhorn_large_eps_back", x, of.base, us[0], Stack(us), Stack(columns), Stack(rows), Stack(rows),
        part, values=(eps, rho),
    )  # fmt: skip
    taken = calls.sequence(
        COLUMNS, part, Stack(columns), Stack(vs), Stack(columns), values=(eps / rho, part.size(1), True)
    )
    for t in range(last - 1, 0, -1):
        back(t, t, t + 1, t)
        taken(t, t - 1, t - 1)
