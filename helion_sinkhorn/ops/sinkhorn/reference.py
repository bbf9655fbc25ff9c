"""The specification of Sinkhorn: the iterations as they are written, in PyTorch."""

from __future__ import annotations

import torch


def sinkhorn(
    logits: torch.Tensor,
    n_iters: int = 20,
    *,
    eps: float = 1e-6,
    form: str = "deepseek",
    first: str = "rows",
    temperature: float = 1.0,
    log_row_marginals: torch.Tensor | None = None,
    log_col_marginals: torch.Tensor | None = None,
    row_lengths: torch.Tensor | None = None,
    col_lengths: torch.Tensor | None = None,
) -> torch.Tensor:
    """Normalise the rows and columns of exp(logits) in turn, `n_iters` times each.

    With R(P) = P / (rowsum(P) + eps) and C(P) = P / (colsum(P) + eps):
        "deepseek":  P = softmax(X, -1) + eps;  P = C(P);  then n_iters - 1 times P = C(R(P))
        "log":       n_iters times X <- X - logsumexp(X, -1);  X <- X - logsumexp(X, -2);  P = exp(X)
    first="cols" swaps the roles of rows and columns.  n_iters = 0 is exp(X) in both forms.

    Args:
        logits: (..., n, m), any floating dtype; all arithmetic is in that dtype.
        n_iters: the number of row and column steps, T in the papers.
        eps: added to every denominator and once to the softmax ("deepseek" only).
        form: "deepseek" (mHC, arXiv 2512.24880, section 4.2, with the eps of DeepSeek's kernels) or "log"
            (log-domain Sinkhorn: Peyre and Cuturi, Computational Optimal Transport, section 4.4).
        first: "rows" or "cols", which side is normalised first.
        temperature: the logits are divided by it; this option and those below are for "log" only.
        log_row_marginals, log_col_marginals: see `potentials`.
        row_lengths, col_lengths: how many rows and columns of each matrix count; P is 0 in the others.
    """
    given = log_row_marginals, log_col_marginals, row_lengths, col_lengths
    if any(t is not None for t in given):
        x, outside = logits / temperature, torch.zeros_like(logits, dtype=torch.bool)
        for lengths, axis in ((row_lengths, -2), (col_lengths, -1)):
            if lengths is not None:
                at = torch.arange(logits.size(axis)).view((-1, 1) if axis == -2 else (1, -1))
                outside = outside | (at >= lengths[..., None, None])
        x = _with_mass(x.masked_fill(outside, -torch.inf), log_row_marginals, log_col_marginals)
        f, g = potentials(x, n_iters, log_row_marginals, log_col_marginals, first=first)
        return (x + f.unsqueeze(-1) + g.unsqueeze(-2)).masked_fill(outside, -torch.inf).exp()
    logits = logits / temperature
    if n_iters == 0:
        return logits.exp()
    lead, trail = (-1, -2) if first == "rows" else (-2, -1)
    if form == "log":
        x = logits
        for _ in range(n_iters):
            x = x - x.logsumexp(lead, keepdim=True)
            x = x - x.logsumexp(trail, keepdim=True)
        return x.exp()
    p = logits.softmax(lead) + eps
    p = p / (p.sum(trail, keepdim=True) + eps)
    for _ in range(n_iters - 1):
        p = p / (p.sum(lead, keepdim=True) + eps)
        p = p / (p.sum(trail, keepdim=True) + eps)
    return p


def potentials(
    x: torch.Tensor,
    n_iters: int,
    log_row_marginals: torch.Tensor | None = None,
    log_col_marginals: torch.Tensor | None = None,
    *,
    first: str = "rows",
) -> tuple[torch.Tensor, torch.Tensor]:
    """n_iters times f = log r - logsumexp(X + g, -1), g = log c - logsumexp(X + f, -2), from g = 0: (f, g).

    A line without mass, or with only -inf, does not belong to the matrix: its potential is 0, and it gets no
    share.  If only one side has marginals, the lines of the other side share their sum equally; without any,
    each line of the side normalised last has 1.

    Args:
        x: (..., n, m), logits divided by the temperature.
        log_row_marginals, log_col_marginals: tensors that broadcast to (..., n) and to (..., m).
        first: "cols" begins with g, from f = 0.
    """
    if first == "cols":
        g, f = potentials(x.mT, n_iters, log_col_marginals, log_row_marginals)
        return f, g
    x = _with_mass(x, log_row_marginals, log_col_marginals)
    rows, columns = ((x > -torch.inf).any(axis) for axis in (-1, -2))
    n, m = (t.sum(-1, keepdim=True).to(x.dtype) for t in (rows, columns))
    log_r, log_c = (None if t is None else t.to(x.dtype) for t in (log_row_marginals, log_col_marginals))
    if log_r is None:
        log_r = (m.log() if log_c is None else _total(log_c, columns)) - n.log()
    if log_c is None:
        log_c = _total(log_r.expand(rows.shape), rows) - m.log()
    f, g = x.new_zeros(rows.shape), x.new_zeros(columns.shape)
    for _ in range(n_iters):
        f = torch.where(rows, log_r - _finite(x + g.unsqueeze(-2), -1, rows), 0.0)
        g = torch.where(columns, log_c - _finite(x + f.unsqueeze(-1), -2, columns), 0.0)
    return f, g


def _with_mass(x: torch.Tensor, log_r: torch.Tensor | None, log_c: torch.Tensor | None) -> torch.Tensor:
    """x with -inf in lines without mass."""
    for logarithms, axis in ((log_r, -1), (log_c, -2)):
        if logarithms is not None:
            x = x.masked_fill((logarithms == -torch.inf).unsqueeze(axis), -torch.inf)
    return x


def _total(logarithms: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return logarithms.expand(counts.shape).masked_fill(~counts, -torch.inf).logsumexp(-1, keepdim=True)


def _finite(z: torch.Tensor, axis: int, counts: torch.Tensor) -> torch.Tensor:
    """logsumexp of the lines that count."""
    return z.masked_fill(~counts.unsqueeze(axis), 0.0).logsumexp(axis)
