"""The memory for the results of forward and backward, and matrices with the lead side as rows."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from helion_sinkhorn.ops.sinkhorn.large.ranks import ALONE, Ranks
from helion_sinkhorn.runtime.binade import binade
from helion_sinkhorn.runtime.pieces import COMPUTING

VECTOR = 4
"""Entries of a float32 vector load."""
SHORTEST = 32
"""The fewest entries of the lines that are normalised first: with fewer, threads of the kernels idle."""
LONGEST = 8192
"""The most entries of a line that a program takes whole."""


def kept_entries(k: int, implementation: str = "helion") -> int:
    """Entries that a kept vector of k takes; for kernels each vector begins at a boundary of 16 bytes."""
    return k if implementation == "pytorch" else -(-k // VECTOR) * VECTOR


def kept_vectors(n_iters: int, eps: float, implementation: str) -> int:
    """How many vectors of a side are kept.

    Kernels also keep the bases of the row vectors, one with eps and one for each iteration without, and as
    many vectors of columns.
    """
    return n_iters + (0 if implementation == "pytorch" else 1 if eps else n_iters)


def empty_results(
    logits: torch.Tensor, n_iters: int, eps: float, keep: bool, implementation: str, out_dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Memory for P, f, g, and the vectors of rows and of columns that a gradient needs."""
    *lead, n, m = logits.shape
    new = functools.partial(logits.new_empty, dtype=COMPUTING[logits.dtype])
    kept = kept_vectors(n_iters, eps, implementation) if keep else 0
    return (
        torch.empty(logits.shape, dtype=out_dtype, device=logits.device),
        *[new(*lead, 0 if eps else k) for k in (n, m)],
        *[new(kept, *lead, kept_entries(k, implementation)) for k in (n, m)],
    )


def empty_gradients(logits: torch.Tensor, log_rows: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Memory for the gradients of the logits and of both marginals, (..., 0) without marginals."""
    *lead, n, m = logits.shape
    sizes = (0, 0) if log_rows is None else (n, m)
    return (
        torch.empty(logits.shape, dtype=logits.dtype, device=logits.device),
        *[logits.new_empty(*lead, k, dtype=COMPUTING[logits.dtype]) for k in sizes],
    )


def lead_first(first: str, rows: Any, columns: Any) -> tuple[Any, Any]:
    """The argument of the lead side, and that of the other side."""
    return (rows, columns) if first == "rows" else (columns, rows)


def turned(first: str, x: torch.Tensor | None) -> torch.Tensor | None:
    """Matrices (..., n, m) as (B, lead side, other side)."""
    if x is None:
        return None
    x = x.reshape(-1, *x.shape[-2:])
    return x if first == "rows" else x.mT


def flat(*vectors: torch.Tensor | None) -> list[torch.Tensor | None]:
    """(..., n) as (B, n)."""
    return [None if t is None else t.reshape(-1, t.size(-1)) for t in vectors]


def of_order_one(dy: torch.Tensor, ranks: Ranks = ALONE) -> tuple[torch.Tensor, torch.Tensor]:
    """(dy / s, s) for dy (..., n, m), with a power of two s (..., 1, 1) near each matrix's largest entry."""
    largest = ranks.largest(dy.abs().amax((-2, -1), keepdim=True), ranks.axis)
    s, reciprocal = binade(largest.to(torch.promote_types(dy.dtype, torch.float32)))
    return dy * reciprocal, s


class Matrices(NamedTuple):
    """The matrices of a call, and how they are normalised."""

    logits: torch.Tensor
    """(..., n, m)."""
    log_rows: torch.Tensor | None = None
    """(..., n): logarithms of the sums of rows.  The log form has marginals, of both sides or of none."""
    log_columns: torch.Tensor | None = None
    eps: float = 0.0
    """0 in the log form."""
    first: str = "rows"
    temperature: float = 1.0
    ranks: Ranks = ALONE
    """The processes that share the rows."""


def forward(given: Matrices, results: tuple[torch.Tensor, ...]) -> tuple[Any, ...]:
    """(x, P, potentials, vectors, marginals) of a forward, with the lead side first in each pair.

    `results` are those of `empty_results`.  The deepseek form has no potentials; there are any number T of
    vectors, (T, B, n) and (T, B, m).
    """
    made, f, g, *vectors = results
    first, x = given.first, turned(given.first, given.logits)
    return (
        x,
        turned(first, made),
        flat(*lead_first(first, f, g)) if f.size(-1) else [],
        lead_first(first, *(t.view(len(t), len(x), t.size(-1)) for t in vectors)),
        flat(*lead_first(first, given.log_rows, given.log_columns)),
    )


def backward(
    dp: torch.Tensor | None, df: torch.Tensor | None, dg: torch.Tensor | None, given: Matrices,
    gradients: tuple[torch.Tensor, ...], *vectors: torch.Tensor,
) -> tuple[Any, ...]:  # fmt: skip
    """(x, dP, dx, gradients of potentials, marginals, vectors, gradients of marginals) of a backward.

    The lead side is first in each pair; `gradients` are those of `empty_gradients`.
    """
    made, *of_marginals = gradients
    first, x = given.first, turned(given.first, given.logits)
    return (
        x,
        turned(first, dp),
        turned(first, made),
        flat(*lead_first(first, df, dg)),
        flat(*lead_first(first, given.log_rows, given.log_columns)),
        lead_first(first, *(t.reshape(len(t), len(x), t.size(-1)) for t in vectors)),
        [] if given.log_rows is None else flat(*lead_first(first, *of_marginals)),
    )
