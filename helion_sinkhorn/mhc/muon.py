"""Muon's step for the projections of all sites at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.runtime.checks import check_int, check_tensor
from helion_sinkhorn.runtime.pieces import COMPUTING

QUINTIC = 3.4445, -4.7750, 2.0315
"""Coefficients of x, x^3 and x^5 that bring singular values from (0, 1] near 1."""
SMALLEST_NORM = 1e-7


def orthogonalized(momenta: Sequence[torch.Tensor], steps: int = 5) -> list[torch.Tensor]:
    """Muon's Newton-Schulz iterations of many matrices; matrices of one shape are one batch.

    fn of a site has n^2 + 2n rows, too few to fill a GPU, and the same shape in all sites of a model.  For 86
    sites the products of 5 steps take 1,290 launches one by one, and 15 in a batch.

        X_0 = M / |M|;  A = X X^T,  X <- a X + (b A + c A A) X
    X has the singular vectors of M, and singular values between about 0.7 and 1.2 where a value of M is not
    tiny beside the largest.

    Args:
        momenta: matrices of any floating dtype, such as the momentum of `site.fn` for each HyperConnection.
            Pass the `full_tensor()` of DTensors, since a part of the rows is another matrix.
        steps: the number of iterations, at least 1.

    Returns:
        One matrix for each, in its dtype.

    Numerical policy: float32, float64 for float64 matrices; one rounding at the end.

    Raises:
        TypeError, ValueError: a momentum is no matrix, or steps is less than 1.

    Source: Jordan et al., Muon: an optimizer for hidden layers in neural networks (2024).
    """
    steps = check_int("steps", steps, 1)
    groups: dict[object, list[int]] = {}
    for k, m in enumerate(momenta):
        check_tensor(f"momenta[{k}]", m, "(rows, columns)")
        if m.dim() != 2:
            raise ValueError(f"momenta[{k}] has shape {tuple(m.shape)}; pass (rows, columns)")
        groups.setdefault((m.shape, COMPUTING[m.dtype], m.device), []).append(k)
    orthogonal: dict[int, torch.Tensor] = {}
    for (_, dtype, _), places in groups.items():
        batch = _newton_schulz(torch.stack([momenta[k].to(dtype) for k in places]), steps)
        orthogonal.update((k, x.to(momenta[k].dtype)) for k, x in zip(places, batch, strict=True))
    return [orthogonal[k] for k in range(len(momenta))]


def _newton_schulz(x: torch.Tensor, steps: int) -> torch.Tensor:
    if x.size(-2) > x.size(-1):
        return _newton_schulz(x.mT, steps).mT
    a, b, c = QUINTIC
    x = x / x.flatten(1).norm(dim=1).clamp(min=SMALLEST_NORM)[:, None, None]
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
