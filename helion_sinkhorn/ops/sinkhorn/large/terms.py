"""The terms that all iterations subtract from the gradient, as sinkhorn_large_terms takes them."""

from __future__ import annotations

import math

import torch

from helion_sinkhorn.ops.sinkhorn.large.calls import State
from helion_sinkhorn.ops.sinkhorn.large.space import TILE
from helion_sinkhorn.ops.sinkhorn.scaling import EXPONENT_BUDGET

MOST_TOGETHER = 4
"""The most iterations of a segment."""


def segment_of(n: int, m: int) -> int:
    """The number of iterations whose potentials differ by no more than the range of a float."""
    return max(1, min(MOST_TOGETHER, int(EXPONENT_BUDGET[torch.float32] // max(1.0, math.log2(n * m)))))


def filled(t: torch.Tensor) -> torch.Tensor:
    """t (..., k), contiguous, with zeros up to a multiple of TILE entries."""
    missing = -t.size(-1) % TILE
    return (torch.nn.functional.pad(t, (0, missing)) if missing else t).contiguous()


def segments(of: State, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(t, there), (S, length): the iterations from the last one on, and whether each of them exists."""
    n_iters = len(of.fs)
    count = -(-n_iters // length)
    order = torch.arange(count * length, device=of.fs.device).view(count, length)
    return (n_iters - 1 - order).clamp_(min=0), (order < n_iters).view(count, length, 1, 1)


def stacked(
    lefts: tuple[torch.Tensor, torch.Tensor], rights: tuple[torch.Tensor, torch.Tensor]
) -> list[torch.Tensor]:
    """Terms (S, length, B, k), two for each iteration, as left (B, S, L, n) and right (B, S, L, m)."""
    return [filled(torch.stack(pair, 2).flatten(1, 2).movedim(-2, 0)) for pair in (lefts, rights)]


def low_rank(of: State, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(bases, base_f, base_g, left, right) of sinkhorn_large_terms: the terms of iterations in segments.

    The terms of iteration t are P_t diag(columns_t) and diag(rows_t) P'_t, whose factors are relative to the
    last iteration of their segment.  The columns of the last iteration come first; the rows of the first
    iteration have no term.
    """
    fs, gs = of.fs, of.gs
    t, there = segments(of, segment_of(fs.size(-1), gs.size(-1)))
    bases, base_f, base_g = (k[t[:, 0]] for k in (of.bases, fs, gs))

    def relative(now: torch.Tensor, base: torch.Tensor, less: torch.Tensor | None = None) -> torch.Tensor:
        u = now - base.unsqueeze(1)
        u = (u if less is None else u - less).exp_()
        return u.masked_fill_((base == -torch.inf).unsqueeze(1), 0.0)

    u, v = relative(fs[t], base_f, of.bases[t] - bases.unsqueeze(1)), relative(gs[t], base_g)
    before = (t - 1).clamp(min=0)
    v_before = relative(gs[before], base_g) * of.rests[before]
    relative_to = [filled(k.movedim(-2, 0)) for k in (bases, base_f, base_g)]
    return *relative_to, *stacked((u * there, u * rows[t] * there), (v * columns[t], v_before))


def of_products(of: State, rows: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """(bases, base_f, base_g, left, right) of the deepseek form.

    Its terms u_t columns_t' and -rows_t v_(t-1)' are not relative: every segment has base, and the last u
    and v.
    """
    t, there = segments(of, MOST_TOGETHER)
    before = of.gs[(t - 1).clamp(min=0)]
    left, right = stacked((of.fs[t] * there, rows[t].neg() * there), (columns[t], before))
    ends = (filled(k).unsqueeze(1).expand(-1, len(t), -1) for k in (of.base, of.fs[-1], of.gs[-1]))
    return *ends, left, right
