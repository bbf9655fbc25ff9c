"""What a backend computed against the equations in float64: on its device, every matrix, piece by piece.

tritonbench's own comparison passes wrong backends in some modes and versions, and compares with a
baseline of the same precision; this one asks what `helion_sinkhorn.ops.sinkhorn.budget` asks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.ops.sinkhorn.budget import error_budget
from helion_sinkhorn.testing.rounding import half_ulp
from tritonbench_ops.bounds import largest_part

PIECE_ENTRIES = 1 << 22
"""Logits computed in float64 at a time: autograd keeps a hundred tensors of this size."""
SAMPLE_ENTRIES = 1 << 13
"""Entries of the matrices that are held to their own error budget: a sample, and as many of the others, those
whose errors stand out most."""
BEYOND_SAMPLE = 8.0
"""All the rest may be this much worse conditioned than the worst of the sample."""


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
    index = torch.linspace(0, len(logits) - 1, _sampled(logits), dtype=torch.float64).long()
    return _budget_of(index, logits, dy, n_iters, **options)


def _sampled(logits: torch.Tensor) -> int:
    """How many matrices are held to their own budgets at a time."""
    return min(len(logits), max(2, SAMPLE_ENTRIES // logits[0].numel()))


def _budget_of(index: torch.Tensor, logits, dy, n_iters: int, **options: object) -> Budget:
    few, dy_few = (t.detach()[index.to(t.device)].cpu().float() for t in (logits, dy))
    p, dx = error_budget(few, dy_few, n_iters, **options)
    return Budget(index.to(logits.device), p.to(logits.device), dx.to(logits.device))


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
    worst_p = worst_dx = marginal = error_square = square = 0.0
    call = logits, dy, p, dx, n_iters, options
    share, least = _share_of_budgets(allowed, *call)
    step = max(1, PIECE_ENTRIES // logits[0].numel())
    outstanding = []
    for k in range(0, len(logits), step):
        index = torch.arange(k, min(k + step, len(logits)), device=logits.device)
        for is_p, exact, found, wrong in _compared(index, *call):
            most = BEYOND_SAMPLE * (allowed.p if is_p else allowed.dx).max()
            half = half_ulp(exact, logits.dtype)
            share = max(share, largest_part(wrong, most + half))
            outstanding.append((k, (wrong / (least[is_p] * (exact if is_p else 1) + half)).amax((1, 2))))
            if is_p:
                worst_p = max(worst_p, _largest(wrong))
                sums = torch.cat([found.sum(-1).flatten(), found.sum(-2).flatten()])
                marginal = max(marginal, _largest((sums - 1).abs().nan_to_num(nan=math.inf)))
            else:
                worst_dx = max(worst_dx, _largest(wrong))
                error_square += float(wrong.square().sum())
                square += float(exact.square().sum())
    ratios = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    for k, ratio in outstanding:
        ratios[k : k + len(ratio)] = torch.maximum(ratios[k : k + len(ratio)], ratio)
    standing_out = ratios.topk(_sampled(logits)).indices
    share = max(share, _share_of_budgets(_budget_of(standing_out, logits, dy, n_iters, **options), *call)[0])
    return Errors(
        share,
        worst_dx if p is None else worst_p,
        None if dx is None else math.sqrt(error_square / square) if square else math.sqrt(error_square),
        None if p is None else marginal,
    )


def _compared(
    index: torch.Tensor, logits, dy, p, dx, n_iters: int, options
) -> Iterator[tuple[bool, torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(whether it is P, the exact result, the one found, the error) of these matrices, for what there is."""
    x64 = logits.detach()[index].double().requires_grad_(dx is not None)
    p64 = reference.sinkhorn(x64, n_iters, **options)
    for actual, is_p in ((p, True), (dx, False)):
        if actual is not None:
            exact = p64.detach() if is_p else torch.autograd.grad(p64, x64, dy[index].double())[0]
            found = actual.detach()[index].double()
            wrong = (found - exact).abs()
            # NaN counts as any error
            yield is_p, exact, found, torch.where(wrong.isnan(), math.inf, wrong)


def _share_of_budgets(
    own: Budget, logits, dy, p, dx, n_iters: int, options
) -> tuple[float, dict[bool, torch.Tensor]]:
    """The largest share of these budgets, and the least of them: of P relative to an entry, of dX itself."""
    share, least = 0.0, {}
    for is_p, exact, _, wrong in _compared(own.index, logits, dy, p, dx, n_iters, options):
        limit = own.p if is_p else own.dx
        share = max(share, largest_part(wrong, limit + half_ulp(exact, logits.dtype)))
        least[is_p] = torch.where(exact > 0, limit / exact, math.inf).min() if is_p else limit.min()
    return share, least


def _largest(x: torch.Tensor) -> float:
    return float(x.max())
