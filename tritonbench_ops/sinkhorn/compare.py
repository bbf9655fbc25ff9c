"""What a backend computed against the equations in float64: on its device, every matrix, piece by piece.

tritonbench's own comparison passes wrong backends in some modes and versions, and compares with a
baseline of the same precision; this one asks what `helion_sinkhorn.lab.sinkhorn.budget` asks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.lab.sinkhorn.budget import error_budget
from tritonbench_ops.bounds import largest_part, pieces

PIECE_ENTRIES = 1 << 20
"""Logits computed in float64 at a time: autograd keeps a hundred tensors of this size."""


@dataclass(frozen=True)
class Budget:
    """What each entry may be off by, the rounding of results to the dtype of the logits included."""

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
    """The error budgets of matrices (B, n, m), kept on the CPU."""
    dtype = logits.dtype
    parts = [
        error_budget(logits[at], dy[at], n_iters, **options, out_dtype=dtype)
        for at in pieces(len(logits), PIECE_ENTRIES, logits[0].numel())
    ]
    return Budget(*(torch.cat([t.cpu() for t in of]) for of in zip(*parts, strict=True)))


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
    share = worst = marginal = error_square = square = 0.0
    for at in pieces(len(logits), PIECE_ENTRIES, logits[0].numel()):
        x64 = logits.detach()[at].double().requires_grad_(dx is not None)
        p64 = reference.sinkhorn(x64, n_iters, **options)
        if p is not None:
            matrices, wrong = compared(p[at], p64.detach())
            share = max(share, largest_part(wrong, allowed.p[at].to(wrong.device)))
            worst = max(worst, float(wrong.max()))
            sums = torch.cat([matrices.sum(-1).flatten(), matrices.sum(-2).flatten()])
            marginal = max(marginal, float((sums - 1).abs().nan_to_num(nan=math.inf).max()))
        if dx is not None:
            (exact,) = torch.autograd.grad(p64, x64, dy[at].double())
            _, wrong = compared(dx[at], exact)
            share = max(share, largest_part(wrong, allowed.dx[at].to(wrong.device)))
            worst = worst if p is not None else max(worst, float(wrong.max()))
            error_square += float(wrong.square().sum())
            square += float(exact.square().sum())
    gradient = math.sqrt(error_square / square) if square else math.sqrt(error_square)
    return Errors(share, worst, None if dx is None else gradient, None if p is None else marginal)


def compared(result: torch.Tensor, exact: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(what was found, its error), in float64; NaN counts as any error."""
    widened = result.detach().double()
    wrong = (widened - exact).abs()
    return widened, torch.where(wrong.isnan(), math.inf, wrong)
