"""What a backend computed against the equations in float64: on its device, every matrix, piece by piece.

tritonbench's own comparison passes wrong backends in some modes and versions, and compares with a
baseline of the same precision; this one asks what `helion_sinkhorn.ops.sinkhorn.budget` asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.ops.sinkhorn.budget import error_budget
from helion_sinkhorn.testing.rounding import half_ulp

PIECE_ENTRIES = 1 << 22
"""Logits computed in float64 at a time: autograd keeps a hundred tensors of this size."""
SAMPLE_ENTRIES = 1 << 13
"""Entries of the matrices that are held to their own error budget."""
BEYOND_SAMPLE = 8.0
"""All other matrices may be this much worse conditioned than the worst of the sample."""


@dataclass(frozen=True)
class Budget:
    """What a backend may be wrong by on these logits: entry by entry on a sample, one bound on the rest."""

    index: torch.Tensor
    """Indices of the sampled matrices; the first and the last are among them."""
    p: torch.Tensor
    dx: torch.Tensor


@dataclass(frozen=True)
class Errors:
    """How far a result is from float64; None is what the mode does not compute."""

    share: float
    """The largest error in units of its budget: at most 1 passes."""
    max_abs: float
    """Largest |P - P64|, or |dX - dX64| where there is no P."""
    gradient: float | None
    """|dX - dX64| / |dX64|, Euclidean norms over the batch."""
    marginal: float | None
    """Largest |sum - 1| of a row or column of P."""


def budget(logits: torch.Tensor, dy: torch.Tensor, n_iters: int, **options: object) -> Budget:
    """The error budget of a sample of the matrices (B, n, m), before the rounding of the result."""
    batch, n, m = logits.shape
    count = min(batch, max(2, SAMPLE_ENTRIES // (n * m)))
    index = torch.linspace(0, batch - 1, count, dtype=torch.float64).long()
    few, dy_few = (t.detach()[index.to(t.device)].cpu().float() for t in (logits, dy))
    p, dx = error_budget(few, dy_few, n_iters, **options)
    return Budget(index.to(logits.device), p.to(logits.device), dx.to(logits.device))


def results(
    mode: str, run: Callable[[], object], forward: Callable[[], torch.Tensor], logits: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(P, dX) as the timed closure of a mode computes them; None for what it does not.

    They are computed twice, the first ones overwritten with NaN: memory that a kernel leaves untouched, or
    a gradient that it does not take anew, cannot pass for a result.

    Args:
        mode: one of cases.MODES.
        run: the timed closure; it leaves a gradient in logits.grad.
        forward: the backend's own closure, for a mode whose `run` may throw P away.
        logits: what both were built for.
    """
    for tensor in _results(mode, run, forward, logits):
        if tensor is not None:
            tensor.detach().fill_(math.nan)
    return _results(mode, run, forward, logits)


def _results(mode, run, forward, logits):
    logits.grad = None
    if mode == "fwd_no_grad":
        with torch.no_grad():
            return forward(), None
    out = run()
    if mode == "fwd":
        return out, None
    if logits.grad is None:
        raise ValueError("the backend left no gradient in logits.grad")
    return (out[0] if mode == "fwd_bwd" else None), logits.grad


def errors(
    logits: torch.Tensor,
    dy: torch.Tensor,
    p: torch.Tensor | None,
    dx: torch.Tensor | None,
    allowed: Budget,
    n_iters: int,
    **options: object,
) -> Errors:
    """The Errors of P, of dX or of both, for logits and upstream gradient (B, n, m).

    Raises:
        ValueError: neither is given, or one has not the shape and dtype of the logits.
    """
    given = [t for t in (p, dx) if t is not None]
    if not given or any(t.shape != logits.shape for t in given):
        raise ValueError(f"results of shape {[tuple(t.shape) for t in given]} for {tuple(logits.shape)}")
    if any(t.dtype != logits.dtype for t in given):
        raise ValueError(f"results of {', '.join(str(t.dtype) for t in given)} for logits of {logits.dtype}")
    share = worst_p = worst_dx = marginal = error_square = square = 0.0
    step = max(1, PIECE_ENTRIES // logits[0].numel())
    pieces = [torch.arange(k, min(k + step, len(logits))) for k in range(0, len(logits), step)]
    for index, sampled in [(allowed.index, True), *((piece, False) for piece in pieces)]:
        index = index.to(logits.device)
        x64 = logits.detach()[index].double().requires_grad_(dx is not None)
        p64 = reference.sinkhorn(x64, n_iters, **options)
        for actual, limit, is_p in ((p, allowed.p, True), (dx, allowed.dx, False)):
            if actual is None:
                continue
            exact = p64.detach() if is_p else torch.autograd.grad(p64, x64, dy[index].double())[0]
            if not sampled:
                limit = BEYOND_SAMPLE * limit.max()
            found = actual.detach()[index].double()
            wrong = (found - exact).abs()
            # NaN counts as any error
            wrong = torch.where(wrong.isnan(), math.inf, wrong)
            share = max(share, _largest(wrong / (limit + half_ulp(exact, actual.dtype))))
            if sampled:
                continue
            if is_p:
                worst_p = max(worst_p, _largest(wrong))
                sums = torch.cat([found.sum(-1).flatten(), found.sum(-2).flatten()])
                marginal = max(marginal, _largest((sums - 1).abs().nan_to_num(nan=math.inf)))
            else:
                worst_dx = max(worst_dx, _largest(wrong))
                error_square += float(wrong.square().sum())
                square += float(exact.square().sum())
    return Errors(
        share,
        worst_dx if p is None else worst_p,
        None if dx is None else math.sqrt(error_square / square) if square else math.sqrt(error_square),
        None if p is None else marginal,
    )


def _largest(x: torch.Tensor) -> float:
    return float(x.max())
