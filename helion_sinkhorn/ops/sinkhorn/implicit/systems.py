"""The systems and solvers of backward="implicit", and `marginal_error`: how far P is from its assumption."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from helion_sinkhorn.runtime.checks import check_option, check_tensor

SYSTEMS = ("corrected", "reduced", "full")
SOLVERS = ("auto", "direct", "cg")
DIRECT_SIZE = 4
"""The most unknowns that "auto" solves directly.

On an H200 elimination takes the time of a copy for 4 x 4, and 4 times as long as conjugate gradients for 8 x
8 (docs/sinkhorn.md).
"""


@dataclass(frozen=True)
class Implicit:
    """Options of an implicit gradient: `sinkhorn(..., backward=Implicit(solver="direct"))`.

    Args:
        system: "corrected" takes the true row and column sums, for any shape.  For comparison, on square
            matrices, "reduced" and "full" assume sums of one, with n and 2 n unknowns.
        solver: "direct" (elimination), "cg" (conjugate gradients), or "auto": direct up to 4 unknowns.

    Raises:
        ValueError: an unknown system or solver.

    Source: docs/sinkhorn.md.
    """

    system: str = "corrected"
    solver: str = "auto"

    def __post_init__(self) -> None:
        check_option("Implicit: system", self.system, SYSTEMS)
        check_option("Implicit: solver", self.solver, SOLVERS)


def solver_for(solver: str, n: int, m: int) -> str:
    """ "direct" or "cg" for an n x m matrix; its unknowns are as many as rows or columns, the fewer."""
    if solver != "auto":
        return solver
    return "direct" if min(n, m) <= DIRECT_SIZE else "cg"


def cg_steps(system: str, n: int, m: int, n_iters: int) -> int:
    """Steps of conjugate gradients: `n_iters`, which are at least as accurate as so many Sinkhorn iterations.

    In exact arithmetic they end after one step for each unknown.
    """
    return min(n + m if system == "full" else min(n, m), n_iters)


def marginal_error(p: torch.Tensor) -> torch.Tensor:
    """How far P is from equal row sums and equal column sums: max |line sum / mean line sum - 1|.

    With s the sum of all entries it is max(max_i |r_i n / s - 1|, max_j |c_j m / s - 1|): zero exactly at a
    fixed point of the iteration, square or not, with or without eps.

    Args:
        p: (..., n, m), float32, bfloat16, float16 or float64.

    Returns:
        (...), one number for each matrix.  A small number does not bound the error of backward="implicit",
        which also depends on the spectral gap (docs/sinkhorn.md).

    Numerical policy: sums and quotients in float32, or in float64 for float64 p.

    Raises:
        TypeError: p is no tensor of these dtypes.
        ValueError: fewer than two dimensions, or no row or column.

    Source: docs/sinkhorn.md.
    """
    check_tensor("p", p, "(..., n, m)")
    if p.dim() < 2 or 0 in p.shape[-2:]:
        raise ValueError(f"p has shape {tuple(p.shape)}; pass (..., n, m) with at least one row and column")
    wide = p.double() if p.dtype == torch.float64 else p.float()
    rows, columns = wide.sum(-1), wide.sum(-2)
    worst = [(s / s.mean(-1, keepdim=True) - 1).abs().amax(-1) for s in (rows, columns)]
    return torch.maximum(*worst)
