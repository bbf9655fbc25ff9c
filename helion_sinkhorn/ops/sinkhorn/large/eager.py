"""Sinkhorn of large matrices and with marginals in PyTorch: iterations are products of a matrix and a vector.

A CPU runs it for marginals, and for several iterations of matrices too large for `sinkhorn.eager`; a GPU for
float64 or beyond the kernels.  The vectors of every iteration are kept for the gradient, but no matrix
(docs/dev/math.md).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from helion_sinkhorn.ops.sinkhorn import definition
from helion_sinkhorn.ops.sinkhorn.eager import settle_exp
from helion_sinkhorn.ops.sinkhorn.large import eps_form, log_form, sides
from helion_sinkhorn.ops.sinkhorn.large.ranks import Ranks
from helion_sinkhorn.ops.sinkhorn.large.sides import (
    SHORTEST,
    Matrices,
    empty_gradients,
    empty_results,
    lead_first,
    of_order_one,
)
from helion_sinkhorn.ops.sinkhorn.line_sums import CACHE_BYTES_OF_LONG
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow
from helion_sinkhorn.runtime.checks import implementation_for
from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import COMPUTING

SMALL = 128
"""The most rows or columns of a small matrix."""
LARGE = 1 << 16
"""The most entries of a matrix that a CPU takes line by line, beside others."""
SLICE_BYTES = 1 << 28
"""Bytes of float32 matrices that are worked on at a time where an operation costs a launch."""


def is_large(x: torch.Tensor, n_iters: int, eps: float) -> bool:
    """Whether matrices (..., n, m) are beyond the small kernels and, on a CPU, `sinkhorn.eager`."""
    n, m = x.shape[-2:]
    if max(n, m) <= SMALL:
        return False
    return x.device.type != "cpu" or (not definition.suits(n_iters, eps) and n * m > LARGE)


def resolve_large(implementation: str, logits: torch.Tensor, first: str) -> str:
    """ "helion" or "pytorch" for a call on large matrices, or with marginals."""
    n, m = lead_first(first, *logits.shape[-2:])

    def beyond() -> str:
        side = "rows" if first == "rows" else "columns"
        return f"the kernels take several {side} of {SHORTEST} entries and more here, logits has {n} of {m}"

    is_beyond = n < 2 or m < SHORTEST
    return implementation_for(implementation, "logits", logits, beyond if is_beyond else None)


def parts(x: torch.Tensor, ranks: Ranks) -> Iterator[int | slice]:
    """The matrices of (B, n, m) that are worked on at a time; they are the same on all ranks."""
    is_cpu = x.device.type == "cpu"
    if is_cpu and (ranks.groups or x[0].numel() > LARGE):
        return iter(range(len(x)))
    if ranks.groups:
        return iter([slice(0, len(x))])
    step = max(1, (CACHE_BYTES_OF_LONG if is_cpu else SLICE_BYTES) // (4 * x[0].numel()))
    return (slice(k, k + step) for k in range(0, len(x), step))


def scaled(x: torch.Tensor, temperature: float, dtype: torch.dtype) -> torch.Tensor:
    """x / temperature, contiguous, in the computing dtype."""
    x = x.to(dtype).contiguous()
    return x if temperature == 1.0 else x / temperature


def cut(part: int | slice, *tensors: torch.Tensor | None) -> list[torch.Tensor | None]:
    return [None if t is None else t[part] for t in tensors]


def forward(given: Matrices, n_iters: int, keep: bool, out_dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """P (..., n, m), its potentials f (..., n) and g (..., m), and vectors that the gradient needs.

    These are vectors of rows (T, ..., n) and of columns (T, ..., m), and none without `keep`.  Only the log
    form has potentials.
    """
    eps, ranks, dtype = given.eps, given.ranks, COMPUTING[given.logits.dtype]
    results = empty_results(given.logits, n_iters, eps, keep, "pytorch", out_dtype)
    if not given.logits.numel():
        return results
    settle_exp()
    x, p, potentials, vectors, marginals = sides.forward(given, results)
    with float32_products():
        for part in parts(x, ranks):
            z = scaled(x[part], given.temperature, dtype)
            kept_here = [t[:, part] for t in vectors]
            if eps:
                eps_form.forward(z, *kept_here, n_iters, eps, p[part], ranks)
            else:
                of = log_form.problem(z, *cut(part, *marginals), ranks)
                log_form.forward(of, *kept_here, *cut(part, *potentials), n_iters, p[part])
    return results


def backward(
    dp: torch.Tensor | None, df: torch.Tensor | None, dg: torch.Tensor | None, given: Matrices,
    of_rows: torch.Tensor, of_columns: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of the logits (..., n, m) and of both marginals, from those of P and of the potentials.

    Without marginals their gradients are empty tensors.
    """
    gradients = empty_gradients(given.logits, given.log_rows)
    if not given.logits.numel():
        return gradients
    settle_exp()
    x, dy, dx, upstream, marginals, (us, vs), of_marginals = sides.backward(
        dp, df, dg, given, gradients, of_rows, of_columns
    )
    eps, ranks, dtype = given.eps, given.ranks, COMPUTING[x.dtype]
    temperature = given.temperature
    with float32_products():
        for part in parts(x, ranks):
            z = scaled(x[part], temperature, dtype)
            # contiguous, since PyTorch adds up in the order of the layout, which a batch may decide
            d = torch.zeros_like(z) if dy is None else dy[part].to(dtype).contiguous()
            if eps:
                d, scale = of_order_one(d, ranks) if may_overflow(eps) else (d, None)
                gradient = eps_form.backward(z, d, eps, us[:, part], vs[:, part], ranks)
                if scale is not None:
                    gradient.mul_(scale)
            else:
                of = log_form.problem(z, *cut(part, *marginals), ranks)
                gradient, *own = log_form.backward(of, d, *cut(part, *upstream), us[:, part], vs[:, part])
                for into, t in zip(of_marginals, own, strict=False):
                    into[part] = t
            dx[part] = gradient if temperature == 1.0 else gradient.div_(temperature)
    return gradients
