"""Elimination and conjugate gradients for the equations of stationarity, in any float32 arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps

Solve = Callable[[SinkhornWorkload, str, torch.Tensor, torch.Tensor], torch.Tensor]
"""(workload, system, P, dY) -> dX; P is float32 with no fewer rows than columns."""
Pivot = Callable[[torch.Tensor, int, Arithmetic], torch.Tensor]
"""(weights, number of the unknown, arithmetic) -> its pivot, (K, 1, 1)."""


def quotient(x: torch.Tensor, y: torch.Tensor, a: Arithmetic) -> torch.Tensor:
    """x / y; 0 where y is 0, of a node that nothing is joined to."""
    return torch.where(y == 0, 0.0, a.divide(x, torch.where(y == 0, 1.0, y)))


def flow(p: torch.Tensor, x: torch.Tensor, system: str, a: Arithmetic, relative: bool) -> torch.Tensor:
    """P times what x is above its mean in each row, weighted by P."""
    x = x.expand_as(p)
    if relative:
        x = x - x.gather(-1, p.argmax(-1, keepdim=True))
    mean = a.dot(p, x, -1)
    if system == "corrected":
        mean = quotient(mean, a.sum(p, -1), a)
    return p * (x - mean)


def full_gradient(p: torch.Tensor, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """dX from the unknowns of the rows and columns, side by side."""
    rows, columns = x.split(p.shape[-2:], -1)
    return p * (dy - rows.unsqueeze(-1) - columns.unsqueeze(-2))


def free(x: torch.Tensor, system: str) -> torch.Tensor:
    """x less its mean, where the system is only nearly singular."""
    return x if system == "corrected" else x - x.mean(-1, keepdim=True)


def eliminated(w: torch.Tensor, b: torch.Tensor, a: Arithmetic, pivot: Pivot) -> torch.Tensor:
    """The unknowns of the Laplacian with weights w (K, m, m), the last of them 0."""
    w, b, scale = w.clone(), b.clone(), []
    m = b.size(-1)
    for k in range(m - 1):
        below, here = slice(k + 1, m), slice(k, k + 1)
        scale.append(pivot(w, k, a))
        into = quotient(w[:, below, here], scale[-1], a)
        b[:, below] = b[:, below] + (into * b[:, here, None]).squeeze(-1)
        w[:, below, below] = w[:, below, below] + into * w[:, here, below]
    x = torch.zeros_like(b)
    for k in reversed(range(m - 1)):
        rest = a.dot(w[:, k : k + 1, k + 1 :], x[:, None, k + 1 :], -1)
        x[:, k] = quotient(b[:, k, None, None] + rest, scale[k], a).flatten()
    return x


def sum_of_weights(w: torch.Tensor, k: int, a: Arithmetic) -> torch.Tensor:
    """The pivot: what is left of row k, summed; (K, 1, 1)."""
    return a.sum(w[:, k : k + 1, k + 1 :], -1)


def elimination(
    a: Arithmetic = PLAIN,
    *,
    backwards: bool = False,
    relative: bool = True,
    pivot: Pivot = sum_of_weights,
) -> Solve:
    """The system reduced to its columns and eliminated without subtractions."""

    def solve(w: SinkhornWorkload, system: str, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        if backwards:
            p, dy = p.flip(-1), dy.flip(-1)
        near = relative and system == "corrected"
        b = free(a.sum(flow(p, dy, system, a, near), -2).squeeze(-2), system)
        scaled = quotient(p, a.sum(p, -1), a) if system == "corrected" else p
        weights = a.dot(scaled.unsqueeze(-1), p.unsqueeze(-2), -3).squeeze(-3)
        if system == "reduced":
            # what rows of 1 - P'P sum to, on the columns alike, so that they sum to zero
            mean = (1.0 - a.dot(p, a.sum(p, -1), -2).squeeze(-2)) / p.size(-1)
            weights = weights + mean.unsqueeze(-1) + free(mean, system).unsqueeze(-2)
        beta = free(eliminated(weights, b, a, pivot), system)
        dx = flow(p, dy - beta.unsqueeze(-2), system, a, near)
        return dx.flip(-1) if backwards else dx

    return solve


def conjugate_gradients(a: Arithmetic = PLAIN, steps: Callable[[int], int] = lambda k: k) -> Solve:
    """The system on what is orthogonal to its gauge, scaled by its diagonal."""

    def solve(w: SinkhornWorkload, system: str, p: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
        n, m = p.shape[-2:]
        count = steps(cg_steps(system, n, m, w.n_iters))
        if system == "full":
            b = torch.cat((a.dot(p, dy, -1).squeeze(-1), a.dot(p, dy, -2).squeeze(-2)), -1)
            degrees, gauge = torch.ones_like(b), torch.cat((torch.ones(n), -torch.ones(m)))

            def image(x):
                rows, columns = x[:, :n].unsqueeze(-1), x[:, n:].unsqueeze(-2)
                return torch.cat((
                    (rows + a.dot(p, columns, -1)).squeeze(-1), (a.dot(p, rows, -2) + columns).squeeze(-2),
                ), -1)  # fmt: skip
        else:
            near = system == "corrected"
            b = a.sum(flow(p, dy, system, a, near), -2).squeeze(-2)
            share = quotient(p, a.sum(p, -1), a)
            degrees = a.sum(p * (1.0 - share), -2).squeeze(-2) if near else torch.ones_like(b)
            gauge = torch.ones(m)

            def image(x):
                x = x.unsqueeze(-2)
                if near:
                    return a.sum(flow(p, x, system, a, False), -2).squeeze(-2)
                return (x - a.dot(p, a.dot(p, x, -1), -2)).squeeze(-2)

        x = descended(image, b, degrees, gauge, count, a)
        if system == "full":
            return full_gradient(p, dy, x)
        return flow(p, dy - x.unsqueeze(-2), system, a, near)

    return solve


def descended(image: Callable, b, degrees, gauge, steps: int, a: Arithmetic) -> torch.Tensor:
    """`steps` steps of conjugate gradients; they end where only rounding is left."""
    weight = degrees * gauge

    def balanced(r):
        return r - weight * quotient(
            a.dot(r, gauge.expand_as(r), -1), a.dot(weight, gauge.expand_as(r), -1), a
        )

    def norm(r):
        return a.dot(r, quotient(r, degrees, a), -1)

    r = balanced(b)
    x, along = torch.zeros_like(r), quotient(r, degrees, a)
    first = left = norm(r)
    for _ in range(steps):
        change = image(along)
        # 2^-44: the square of four units of roundoff
        alpha = torch.where(left > 2.0**-44 * first, quotient(left, a.dot(along, change, -1), a), 0.0)
        x = x + alpha * along
        r = balanced(r - alpha * change)
        now = norm(r)
        along = quotient(r, degrees, a) + quotient(now, left, a) * along
        left = now
    return x
