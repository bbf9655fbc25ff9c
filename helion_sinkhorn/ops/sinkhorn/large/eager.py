"""Sinkhorn of large matrices in PyTorch, with marginals: iterations are products of a matrix and a vector.

What a CPU runs beyond the small matrices of `sinkhorn.eager`, and a GPU for float64 or beyond the kernels.
The vectors of every iteration are kept for the gradient, and no matrix (docs/dev/math.md).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

from helion_sinkhorn.ops.sinkhorn.eager import of_order_one, settle_exp
from helion_sinkhorn.ops.sinkhorn.large import eps_form, log_form
from helion_sinkhorn.ops.sinkhorn.large.problem import problem
from helion_sinkhorn.ops.sinkhorn.line_sums import CACHE_BYTES
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow
from helion_sinkhorn.runtime.checks import implementation_for
from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import computing

SMALL = 128
"""Most rows or columns of a matrix that is small."""
SHORTEST, LONGEST = 32, 8192
"""Entries of the lines that a program of the kernels has whole: shorter ones leave its threads idle."""
LARGE = 1 << 15
"""Entries from which on a CPU takes matrices one by one."""
SLICE_BYTES = 1 << 28
"""Float32 matrices worked on at a time where an operation costs a launch."""


def is_large(x: torch.Tensor) -> bool:
    """Whether matrices (..., n, m) beyond the small kernels are taken one by one, or many by a GPU."""
    n, m = x.shape[-2:]
    return max(n, m) > SMALL and (x.device.type != "cpu" or n * m >= LARGE)


def resolve_large(implementation: str, logits: torch.Tensor, first: str) -> str:
    """ "helion" or "pytorch" for a call of the log form on large matrices, or with marginals."""
    n, m = lead_first(first, *logits.shape[-2:])

    def beyond() -> str:
        side = "rows" if first == "rows" else "columns"
        return f"the kernels take several {side} of {SHORTEST} to {LONGEST} entries, logits has {n} of {m}"

    is_beyond = n < 2 or not SHORTEST <= m <= LONGEST
    return implementation_for(implementation, "logits", logits, beyond if is_beyond else None)


def parts(x: torch.Tensor) -> Iterator[int | slice]:
    """Which of (B, n, m) are worked on at a time."""
    if x.device.type == "cpu" and x[0].numel() >= LARGE:
        return iter(range(len(x)))
    size = CACHE_BYTES if x.device.type == "cpu" else SLICE_BYTES
    step = max(1, size // (4 * x[0].numel()))
    return (slice(k, k + step) for k in range(0, len(x), step))


def scaled(x: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    """x / temperature, contiguous, in the type of the arithmetic."""
    x = x.to(dtype).contiguous()
    return x if temperature == 1.0 else x / temperature


def lead_first(first: str, rows: Any, columns: Any) -> tuple[Any, Any]:
    """What belongs to the lead side, and to the other one."""
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


def cut(part: int | slice, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if t is None else t[part] for t in tensors]


def forward(
    logits: torch.Tensor,
    log_rows: torch.Tensor | None,
    log_columns: torch.Tensor | None,
    n_iters: int,
    eps: float,
    first: str,
    temperature: float,
    keep: bool,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """P (..., n, m), its potentials f (..., n) and g (..., m), and what a gradient needs of the iterations:
    vectors of rows (T, ..., n) and of columns (T, ..., m), without `keep` none.

    eps is 0 in the log form; only that has potentials, and marginals, both of them or none.
    """
    dtype = computing(logits.dtype)
    lead, (n, m) = logits.shape[:-2], logits.shape[-2:]
    made = torch.empty(logits.shape, dtype=out_dtype, device=logits.device)
    kept = n_iters if keep else 0
    new = functools.partial(logits.new_empty, dtype=dtype)
    potentials = [new(*lead, 0 if eps else k) for k in (n, m)]
    vectors = [new(kept, *lead, k) for k in (n, m)]
    if not logits.numel():
        return made, *potentials, *vectors
    settle_exp()
    x, p = turned(first, logits), turned(first, made)
    us, vs = lead_first(first, *(t.view(kept, len(x), t.size(-1)) for t in vectors))
    fg = [] if eps else flat(*lead_first(first, *potentials))
    marginals = flat(*lead_first(first, log_rows, log_columns))
    with float32_products():
        for part in parts(x):
            z = scaled(x[part], temperature, dtype)
            kept_here = us[:, part], vs[:, part]
            if eps:
                eps_form.forward(z, *kept_here, n_iters, eps, p[part])
            else:
                log_form.forward(
                    problem(z, *cut(part, *marginals)), *kept_here, *cut(part, *fg), n_iters, p[part]
                )
    return made, *potentials, *vectors


def backward(
    dp: torch.Tensor | None,
    df: torch.Tensor | None,
    dg: torch.Tensor | None,
    logits: torch.Tensor,
    log_rows: torch.Tensor | None,
    log_columns: torch.Tensor | None,
    of_rows: torch.Tensor,
    of_columns: torch.Tensor,
    eps: float,
    first: str,
    temperature: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of the logits (..., n, m) and of both marginals, of those of P and of the potentials.

    Without marginals theirs are empty.
    """
    dtype = computing(logits.dtype)
    lead, (n, m), kept = logits.shape[:-2], logits.shape[-2:], len(of_rows)
    dx = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    none = log_rows is None
    of_marginals = [logits.new_empty(*lead, 0 if none else k, dtype=dtype) for k in (n, m)]
    if not logits.numel():
        return dx, *of_marginals
    settle_exp()
    x, dy, made = (turned(first, t) for t in (logits, dp, dx))
    us, vs = lead_first(first, *(t.reshape(kept, len(x), t.size(-1)) for t in (of_rows, of_columns)))
    marginals = flat(*lead_first(first, log_rows, log_columns))
    upstream = flat(*lead_first(first, df, dg))
    d_marginals = [] if none else flat(*lead_first(first, *of_marginals))
    with float32_products():
        for part in parts(x):
            z = scaled(x[part], temperature, dtype)
            d = torch.zeros_like(z) if dy is None else dy[part].to(dtype)
            if eps:
                d, scale = of_order_one(d) if may_overflow(eps) else (d, 1.0)
                found = eps_form.backward(z, d, eps, us[:, part], vs[:, part]).mul_(scale)
            else:
                of = problem(z, *cut(part, *marginals))
                found, *own = log_form.backward(of, d, *cut(part, *upstream), us[:, part], vs[:, part])
                for into, t in zip(d_marginals, own, strict=False):
                    into[part] = t
            made[part] = found if temperature == 1.0 else found.div_(temperature)
    return dx, *of_marginals
