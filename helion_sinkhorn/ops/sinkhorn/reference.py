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
) -> torch.Tensor:
    """Normalise the rows and columns of exp(logits) in turn, `n_iters` times each.

    With R(P) = P / (rowsum(P) + eps) and C(P) = P / (colsum(P) + eps):
        "deepseek":  P = softmax(X, -1) + eps;  P = C(P);  then n_iters - 1 times P = C(R(P))
        "log":       n_iters times X <- X - logsumexp(X, -1);  X <- X - logsumexp(X, -2);  P = exp(X)
    first="cols" swaps the roles of rows and columns.  n_iters = 0 is exp(X) in both forms.

    Args:
        logits: (..., n, m), any floating dtype; all arithmetic is in that dtype.
        n_iters: row and column steps, T in the papers.
        eps: added to every denominator and once to the softmax ("deepseek" only).
        form: "deepseek" (mHC, arXiv 2512.24880, section 4.2, with the eps of DeepSeek's kernels) or "log"
            (log-domain Sinkhorn: Peyre and Cuturi, Computational Optimal Transport, section 4.4).
        first: "rows" or "cols", which side is normalised first.
    """
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
