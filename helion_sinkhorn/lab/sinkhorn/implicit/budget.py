"""The truth and the error budget of backward="implicit": its equations solved exactly, and a solver's errors.

`Stationarity.perturbed` evaluates the residual of the equations at their solution with the rounding errors of
float32, amplifies it by the exact inverse, and forms the gradient.  It uses no solver (docs/dev/math.md,
Rounding errors of the implicit gradient).
"""

from __future__ import annotations

import functools

import torch

from helion_sinkhorn.lab.rounding import SIGMAS, UNIT, Rounding, half_ulp, variances

EXACT = Rounding(0, 0.0)
STOP = 4.0
"""Units of roundoff of the first residual at which conjugate gradients stop."""
CONNECTED = 2.0**-46
"""Eigenvalues below this are rounding errors of float64 for P with sums near one: a disconnected graph."""


def relative(p: torch.Tensor, x: torch.Tensor, rounding: Rounding) -> torch.Tensor:
    """x less its value at the largest entry of each row of P: means of nearly one-hot rows stay exact."""
    return rounding(x - x.gather(-1, p.argmax(-1, keepdim=True)))


class Stationarity:
    """The equations of one system of `Implicit` at P (..., n, m) for an upstream gradient, in float64."""

    def __init__(self, p: torch.Tensor, dy: torch.Tensor, system: str) -> None:
        p, dy = (t.detach().to("cpu", torch.float64) for t in (p, dy))
        self.system = system
        # the unknowns are on the columns, and no more than rows
        self.transposed = p.size(-2) < p.size(-1)
        self.p, self.dy = (p.mT, dy.mT) if self.transposed else (p, dy)
        n, m = self.p.shape[-2:]
        r, c = self.p.sum(-1), self.p.sum(-2)
        if system != "corrected":
            r, c = torch.ones_like(r), torch.ones_like(c)
        if system == "full":
            top = torch.cat((torch.diag_embed(r), self.p), -1)
            matrix = torch.cat((top, torch.cat((self.p.mT, torch.diag_embed(c)), -1)), -2)
            gauge = torch.cat((r.new_ones(n), -r.new_ones(m)))
        else:
            matrix = torch.diag_embed(c) - self.p.mT @ (self.p / r.unsqueeze(-1))
            gauge = c.new_ones(m)
        self.unknowns = len(gauge)
        free = torch.eye(self.unknowns, dtype=p.dtype) - torch.outer(gauge, gauge) / self.unknowns
        self.inverse = torch.linalg.pinv(free @ matrix @ free, atol=CONNECTED, rtol=0.0, hermitian=True)
        self.degrees = matrix.diagonal(dim1=-2, dim2=-1) if system == "corrected" else torch.ones_like(gauge)
        self.solution = self.solve(self.right_side(EXACT))

    @functools.cached_property
    def exact(self) -> torch.Tensor:
        """dX."""
        return self.restored(self.gradient(self.solution, EXACT))

    def error_budget(
        self, solver: str, dtype: torch.dtype = torch.float32, *, unit: float = UNIT, seed: int = 0
    ) -> torch.Tensor:
        """Largest |dX - exact| that a solver may show: five deviations, the largest of a matrix, half an ulp.

        Args:
            solver: "direct" or "cg"; they differ where P is nearly disconnected, and only in "corrected".
            dtype: of dX.
            unit: unit roundoff of the arithmetic.
            seed: of the random errors.
        """
        exact, run = {"dX": self.exact}, lambda error: {"dX": self.perturbed(solver, error)}
        variance = variances(exact, run, seed=seed, unit=unit)["dX"]
        deviation = variance.amax((-2, -1), keepdim=True).sqrt()
        return SIGMAS * deviation.expand_as(self.exact) + half_ulp(self.exact, dtype)

    def perturbed(self, solver: str, rounding: Rounding) -> torch.Tensor:
        """dX with `rounding` wherever a solver rounds."""
        rounding.next_iteration()

        def rest(rounding: Rounding) -> torch.Tensor:
            """What is left of the equations; either side is updated once for each unknown, by a quotient."""
            sides = self.right_side(rounding), self.image(self.solution, solver, rounding)
            one, other = (rounding.running(rounding(s, rounding.RECIPROCAL), self.unknowns) for s in sides)
            return one - other

        left = rest(rounding) - rest(EXACT)
        if solver == "cg":
            first = (self.right_side(EXACT).square() / self.degrees).nan_to_num().mean(-1, keepdim=True)
            stop = (first * self.degrees).sqrt()
            left = left + rounding(stop, STOP) - stop
        # known up to the gauge: whichever solution a solver stores, its entries are of this size
        size = self.solution.abs().amax(-1, keepdim=True).expand_as(self.solution)
        stored = rounding.running(size, self.unknowns) - size
        return self.restored(self.gradient(self.solution + self.solve(left) + stored, rounding))

    def restored(self, t: torch.Tensor) -> torch.Tensor:
        """A matrix in the orientation of P."""
        return t.mT if self.transposed else t

    def solve(self, b: torch.Tensor) -> torch.Tensor:
        return (self.inverse @ b.unsqueeze(-1)).squeeze(-1)

    def flow(self, x: torch.Tensor, rounding: Rounding) -> torch.Tensor:
        """F(x): P times what x is above its mean in each row, weighted by P."""
        mean = rounding.dot(self.p, x, -1)
        if self.system == "corrected":
            mean = rounding(mean * rounding(1.0 / rounding.sum(self.p, -1), rounding.RECIPROCAL))
        return rounding(self.p * rounding(x - mean))

    def right_side(self, rounding: Rounding) -> torch.Tensor:
        p, dy = self.p, self.dy
        if self.system == "full":
            return torch.cat((rounding.dot(p, dy, -1).squeeze(-1), rounding.dot(p, dy, -2).squeeze(-2)), -1)
        if self.system == "corrected":
            dy = relative(p, dy, rounding)
        return rounding.sum(self.flow(dy, rounding), -2).squeeze(-2)

    def image(self, x: torch.Tensor, solver: str, rounding: Rounding) -> torch.Tensor:
        """The matrix times x.  Elimination works on differences of unknowns, "cg" on the unknowns."""
        p, n = self.p, self.p.size(-2)
        if self.system == "full":
            a, b = x[..., :n].unsqueeze(-1), x[..., n:].unsqueeze(-2)
            rows = rounding(a + rounding.dot(p, b, -1)).squeeze(-1)
            return torch.cat((rows, rounding(rounding.dot(p, a, -2) + b).squeeze(-2)), -1)
        x = x.unsqueeze(-2)
        if self.system == "reduced":
            return rounding(x - rounding.dot(p, rounding.dot(p, x, -1), -2)).squeeze(-2)
        if solver == "direct":
            x = relative(p, x.expand_as(p), rounding)
        return rounding.sum(self.flow(x, rounding), -2).squeeze(-2)

    def gradient(self, x: torch.Tensor, rounding: Rounding) -> torch.Tensor:
        if self.system == "full":
            a, b = x[..., : self.p.size(-2)].unsqueeze(-1), x[..., self.p.size(-2) :].unsqueeze(-2)
            return rounding(self.p * rounding(rounding(self.dy - a) - b))
        rest = rounding(self.dy - x.unsqueeze(-2))
        if self.system == "corrected":
            rest = relative(self.p, rest, rounding)
        return self.flow(rest, rounding)
