"""The passes of sinkhorn_balance in vectorised PyTorch: what a CPU runs, and a GPU for float64.

x is (B, m, n), and c (B, n) and d (B, m) are the scales of columns and rows, 0 in masked rows; u = d x c.
Rows are computed in pieces.  A matrix's bits do not depend on other matrices: the size of one matrix decides
the order of pieces and sums.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from helion_sinkhorn.runtime.pieces import COMPUTING, pieces, sum_last, sum_over


def blocks(x: torch.Tensor) -> Iterator[tuple[slice, slice]]:
    """Matrices and rows of x (B, m, n) that are computed at a time."""
    _, m, n = x.shape
    for some in pieces(len(x), m * n):
        for rows in pieces(m, n):
            yield some, rows


def row_norms(entries: torch.Tensor) -> torch.Tensor:
    return sum_last(entries.square()).sqrt_()


def norms(x: torch.Tensor) -> torch.Tensor:
    """The norms (B, m) of rows."""
    norms_of_rows = x.new_empty(x.shape[:2], dtype=COMPUTING[x.dtype])
    for at in blocks(x):
        norms_of_rows[at] = row_norms(x[at].to(norms_of_rows.dtype))
    return norms_of_rows


def momentum(
    x: torch.Tensor, average: torch.Tensor, ahead: torch.Tensor | None, momentum: float
) -> torch.Tensor:
    """Update average <- momentum average + (1 - momentum) x, and write ahead likewise if it is given.

    Return the norms (B, m) of the rows of what is stored last.
    """
    norms_of_rows = x.new_empty(x.shape[:2], dtype=COMPUTING[x.dtype])
    for at in blocks(x):
        terms = x[at].to(norms_of_rows.dtype) * (1.0 - momentum)
        mean = (average[at].to(norms_of_rows.dtype) * momentum).add_(terms)
        average[at] = mean
        stored = average[at]
        if ahead is not None:
            ahead[at] = mean.mul_(momentum).add_(terms)
            stored = ahead[at]
        norms_of_rows[at] = row_norms(stored.to(norms_of_rows.dtype))
    return norms_of_rows


def order(live: torch.Tensor) -> None:
    """The order of rows that `squares` takes, from which rows are not masked: here none, since d says it."""


def iterate(
    x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, at: tuple[slice, slice], eps: float, row_step: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(u, d) of some rows; where d is 0, u is 0 for any x."""
    scales = d[at]
    u = (x[at].to(c.dtype) * c[at[0]].unsqueeze(1)).masked_fill_((scales == 0).unsqueeze(2), 0.0)
    if row_step:
        norms_of_rows = row_norms(u)
        # a line of zeros keeps its scale, which must not become infinite
        scales = scales / torch.where(norms_of_rows == 0, 1.0, scales * norms_of_rows + eps)
    return u.mul_(scales.unsqueeze(2)), scales


def squares(
    x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, order: None,
    eps: float, row_step: bool, backwards: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(sums (B, S, n) of u^2 over shares of the rows, d), after a row step if the pass has one."""
    total, stepped = torch.zeros_like(c), torch.empty_like(d)
    for at in [*blocks(x)][:: -1 if backwards else 1]:
        u, stepped[at] = iterate(x, c, d, at, eps, row_step)
        total[at[0]] += sum_over(u.square_(), 1)
    return total.unsqueeze(1), stepped


def columns(sums: torch.Tensor, c: torch.Tensor, eps: float) -> None:
    """A column step: divide c by the norms."""
    square = sums.sum(1)
    c.div_(torch.where(square == 0, 1.0, square.sqrt() + eps))


def finish(
    x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, out: torch.Tensor,
    eps: float, row_step: bool, factor: float,
) -> None:  # fmt: skip
    """out = u times factor, after a last row step if there is one."""
    for at in blocks(x):
        u, _ = iterate(x, c, d, at, eps, row_step)
        out[at] = u.mul_(factor)


def update(
    x: torch.Tensor, c: torch.Tensor, d: torch.Tensor, w: torch.Tensor,
    size: torch.Tensor, eps: float, row_step: bool,
) -> None:  # fmt: skip
    """w <- w - size u, after a last row step if there is one; masked rows stay."""
    for at in blocks(x):
        u, _ = iterate(x, c, d, at, eps, row_step)
        moved = w[at].to(u.dtype) - u.mul_(size)
        w[at] = torch.where((d[at] == 0).unsqueeze(2), w[at], moved.to(w.dtype))
