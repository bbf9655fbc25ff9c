"""Launches on lines that a program takes whole, in both forms: an iteration reads the logits once."""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import Calls, Stack, State, place
from helion_sinkhorn.ops.sinkhorn.large.sides import kept_entries
from helion_sinkhorn.ops.sinkhorn.scaling import rescaling
from helion_sinkhorn.runtime.launch import Tensors

EPS_COLUMNS = "sinkhorn_large_eps_columns"


def iterations(calls: Calls, of: State, n_iters: int) -> None:
    """Compute base, f, g and rest, or u and v, of every iteration."""
    (_eps_iterations if of.eps else _log_iterations)(calls, of, n_iters)


def taken_back(
    calls: Calls, of: State, dy: torch.Tensor, own: Tensors, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    """Compute the vectors of the terms that each iteration subtracts from the gradient.

    They are rows (T, B, n), except the first, divided by r, and columns (T, B, m), divided by c, times rest;
    in the deepseek form rows are negative except the first.
    """
    (_eps_taken_back if of.eps else _log_taken_back)(calls, of, dy, own, rows, columns)


def _eps_iterations(calls: Calls, of: State, n_iters: int) -> None:
    x, us, vs, eps, count = calls.x, of.fs, of.gs, of.eps, len(of.fs)
    rho = rescaling(*x.shape[1:], eps, n_iters - 1)
    part = calls.rows("sinkhorn_large_eps_first", x, of.base, us[0], values=(eps,))
    ones = torch.ones_like(vs[0])
    calls.launch(EPS_COLUMNS, part, ones, ones, vs[0], values=(eps, part.size(1), False))
    if n_iters == 1:
        return
    part = calls.part("sinkhorn_large_eps_step")
    step = calls.sequence(
        "sinkhorn_large_eps_step", x, of.base, us[0], Stack(us), Stack(vs), Stack(us), part,
        values=(eps, rho),
    )  # fmt: skip
    columns = calls.sequence(
        EPS_COLUMNS, part, Stack(vs), ones, Stack(vs), values=(eps / rho, part.size(1), False)
    )  # fmt: skip
    for t in range(1, n_iters):
        before, now = place(t - 1, count), place(t, count)
        step(before, before, now)
        columns(before, now)


def _log_iterations(calls: Calls, of: State, n_iters: int) -> None:
    x, fs, gs, count = calls.x, of.fs, of.gs, len(of.fs)
    largest = torch.empty_like(calls.part("sinkhorn_large_first"))
    part = calls.rows("sinkhorn_large_first", x, of.scale, of.log_r, of.base, fs[0], largest)
    given = largest, part, of.log_c, gs[0], of.rests[0]
    calls.launch("sinkhorn_large_columns_of_logs", *given, values=(part.size(1),))
    if n_iters == 1:
        return
    part = calls.part("sinkhorn_large_step")
    step = calls.sequence(
        "sinkhorn_large_step", x, of.scale, of.log_r, Stack(of.bases), Stack(fs), Stack(gs),
        Stack(of.rests), Stack(of.bases), Stack(fs), part,
    )  # fmt: skip
    given = part, Stack(gs), of.log_c, Stack(gs), Stack(of.rests)
    columns = calls.sequence("sinkhorn_large_columns", *given, values=(part.size(1),))
    for t in range(1, n_iters):
        before, now = place(t - 1, count), place(t, count)
        step(before, before, before, before, now, now)
        columns(before, now, now)


def _eps_taken_back(
    calls: Calls, of: State, dy: torch.Tensor, own: Tensors, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    x, us, vs, eps, last = calls.x, of.fs, of.gs, of.eps, len(of.fs) - 1
    rho = rescaling(*x.shape[1:], eps, last)
    nothing = torch.zeros_like(vs[0])

    def gather(part: torch.Tensor, t: int) -> None:
        calls.launch(EPS_COLUMNS, part, nothing, vs[t], columns[t], values=(0.0, part.size(1), True))

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
        EPS_COLUMNS, part, Stack(columns), Stack(vs), Stack(columns), values=(eps / rho, part.size(1), True)
    )
    for t in range(last - 1, 0, -1):
        back(t, t, t + 1, t)
        taken(t, t - 1, t - 1)


def _log_taken_back(
    calls: Calls, of: State, dy: torch.Tensor, own: Tensors, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    x, (own_f, own_g), fs, gs, last = calls.x, own, of.fs, of.gs, len(of.fs) - 1
    m = columns.size(-1)
    nothing, again = (calls.empty(len(x), kept_entries(m))[:, :m] for _ in range(2))
    nothing.zero_()

    def gather(part: torch.Tensor, t: int, out: torch.Tensor, earlier: bool) -> None:
        given = part, own_g, of.log_c, of.rests[t], out
        calls.launch("sinkhorn_large_gather", *given, values=(part.size(1), earlier))

    given = x, dy, of.scale, of.bases[last], fs[last], gs[last], of.rests[last]
    # twice, since the first sums are the largest of all, and so are their rounding errors
    gather(calls.rows("sinkhorn_large_sums", *given, nothing), last, columns[last], False)
    gather(calls.rows("sinkhorn_large_sums", *given, columns[last]), last, again, False)
    columns[last].add_(again)
    if not last:
        return
    part = calls.rows(
        "sinkhorn_large_turn", x, dy, of.scale, of.log_r, of.bases[last], own_f, fs[last], gs[last],
        gs[last - 1], of.rests[last], columns[last], rows[last],
    )  # fmt: skip
    gather(part, last - 1, columns[last - 1], True)
    if last == 1:
        return
    part = calls.part("sinkhorn_large_back")
    back = calls.sequence(
        "sinkhorn_large_back", x, of.scale, of.log_r, Stack(of.bases), Stack(fs), Stack(gs), Stack(gs),
        Stack(columns), Stack(rows), part,
    )  # fmt: skip
    given = part, own_g, of.log_c, Stack(of.rests), Stack(columns)
    taken = calls.sequence("sinkhorn_large_gather", *given, values=(part.size(1), True))
    for t in range(last - 1, 0, -1):
        back(t, t, t, t - 1, t, t)
        taken(t - 1, t - 1)
