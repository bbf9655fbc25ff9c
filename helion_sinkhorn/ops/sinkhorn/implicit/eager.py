"""backward="implicit" in vectorised PyTorch: what a CPU runs, and a GPU for float64 or large matrices.

The equations are those of the kernels (docs/dev/math.md).  Tensors are (n, m, C), C matrices:
every sum runs in one fixed order, whatever the batch.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.eager import of_order_one
from helion_sinkhorn.ops.sinkhorn.implicit.systems import cg_steps, solver_for
from helion_sinkhorn.ops.sinkhorn.line_sums import Sums, laid_out, slices
from helion_sinkhorn.runtime.pieces import sum_over


def _total(a: torch.Tensor, axis: int) -> torch.Tensor:
    return sum_over(a.clone(), axis)


def _total_of(a: torch.Tensor, b: torch.Tensor, axis: int) -> torch.Tensor:
    """The sum of a b, added up by halves."""
    return sum_over(a * b, axis)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    """1 / x, or 0 where x is 0."""
    return torch.where(x >= torch.finfo(x.dtype).tiny, x.reciprocal(), 0.0)


def _step_length(left: torch.Tensor, first: torch.Tensor, curvature: torch.Tensor) -> torch.Tensor:
    """left / curvature, or 0 once the residual is at four units of roundoff, where only rounding is left."""
    stop = (2 * torch.finfo(left.dtype).eps) ** 2
    return torch.where(left > stop * first, left * _inverse(curvature), 0.0)


class _Slice:
    """A slice of matrices P (n, m, C) with m <= n; the unknowns beta belong to its columns."""

    def __init__(self, p: torch.Tensor, g: torch.Tensor, system: str, axis: int | None) -> None:
        self.p, self.g = p, g
        self.sums, self.of_vectors = Sums(p, axis), Sums(p[0])
        self.corrected = system == "corrected"
        self.inv = _inverse(_total(p, 1)) if self.corrected else torch.ones_like(p[:, 0])

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """P x."""
        return self.sums.of_products(1, self.p, x).clone()

    def columns(self, y: torch.Tensor) -> torch.Tensor:
        """P' y."""
        return self.sums.of_products(0, self.p, y.unsqueeze(1)).clone()

    def dot(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a' b of two vectors over columns."""
        return self.of_vectors.of_products(0, a, b).clone()

    def balanced(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        """x less the multiple of `weight` (by default of ones) that makes its sum zero."""
        total = self.of_vectors.total(0, x).clone()
        if weight is None:
            return x - total / x.size(0)
        return x - weight * (total * _inverse(self.of_vectors.total(0, weight)))

    def flow(self, x: torch.Tensor) -> torch.Tensor:
        """F(X): P times the difference of x to its mean in each row, weighted by P."""
        if self.corrected:
            # relative to the largest entry of the row, so that means of nearly one-hot rows stay exact
            at = self.p.argmax(1, keepdim=True)
            x = x - x.gather(1, at)
        return self.p * (x - (self.rows(x) * self.inv).unsqueeze(1))

    def right_hand_side(self) -> torch.Tensor:
        """b: the column sums of F(G)."""
        b = _total(self.flow(self.g), 0)
        return b if self.corrected else self.balanced(b)

    def image(self, x: torch.Tensor) -> torch.Tensor:
        """S x."""
        y = self.rows(x)
        if self.corrected:
            return self.sums.of_products(0, self.p, x - (y * self.inv).unsqueeze(1)).clone()
        return self.balanced(x - self.columns(y))

    def gradient(self, beta: torch.Tensor) -> torch.Tensor:
        return self.flow(self.g - beta)

    def direct(self) -> torch.Tensor:
        """beta by elimination of the Laplacian, which only adds; the last unknown is dropped."""
        b, m = self.right_hand_side(), self.p.size(1)
        scaled = self.p * self.inv.unsqueeze(1)
        # laid out in memory like P
        w = b.new_zeros(m, *b.shape) if b.stride(-1) == 1 else b.new_zeros(b.size(1), m, m).permute(1, 2, 0)
        for i in range(self.p.size(0)):
            w.addcmul_(scaled[i].unsqueeze(1), self.p[i])
        if not self.corrected:
            ones = torch.ones_like(b)
            mean = (ones - self.columns(self.rows(ones))) / m
            w += mean.unsqueeze(1) + self.balanced(mean)
        scale = []
        for k in range(m - 1):
            scale.append(_inverse(_total(w[k, k + 1 :], 0)))
            into = w[k + 1 :, k] * scale[k]
            b[k + 1 :].addcmul_(into, b[k])
            w[k + 1 :, k + 1 :].addcmul_(into.unsqueeze(1), w[k, k + 1 :])
        beta = torch.zeros_like(b)
        for k in range(m - 2, -1, -1):
            beta[k] = (b[k] + _total_of(w[k, k + 1 :], beta[k + 1 :], 0)) * scale[k]
        return beta if self.corrected else self.balanced(beta)

    def cg(self, steps: int) -> torch.Tensor:
        """beta by conjugate gradients, the corrected system scaled by its diagonal."""
        if self.corrected:
            degree = _total(self.p * (1 - self.p * self.inv.unsqueeze(1)), 0)
        else:
            degree = torch.ones_like(self.p[0])
        scale = _inverse(degree)
        residual = self.balanced(self.right_hand_side(), degree)
        x, along = torch.zeros_like(residual), residual * scale
        first = left = self.dot(residual, along)
        for _ in range(steps):
            image = self.image(along)
            alpha = _step_length(left, first, self.dot(along, image))
            x = x + alpha * along
            residual = self.balanced(residual - alpha * image, degree)
            scaled = residual * scale
            now = self.dot(residual, scaled)
            along = scaled + now * _inverse(left) * along
            left = now
        return x


def _full_cg(p: torch.Tensor, g: torch.Tensor, steps: int) -> torch.Tensor:
    """dX by conjugate gradients on [I P; P' I], in the space orthogonal to its gauge (1, -1)."""
    n, m = p.shape[:2]

    def gauge_free(a, b):
        shift = (_total(a, 0) - _total(b, 0)) / (n + m)
        return torch.cat((a - shift, b + shift))

    residual = gauge_free(_total_of(p, g, 1), _total_of(p, g, 0))
    x, along = torch.zeros_like(residual), residual
    first = left = _total_of(residual, residual, 0)
    for _ in range(steps):
        a, b = along[:n], along[n:]
        image = gauge_free(a + _total_of(p, b, 1), _total_of(p, a.unsqueeze(1), 0) + b)
        alpha = _step_length(left, first, _total_of(along, image, 0))
        x = x + alpha * along
        residual = residual - alpha * image
        now = _total_of(residual, residual, 0)
        along = residual + now * _inverse(left) * along
        left = now
    return p * (g - x[:n].unsqueeze(1) - x[n:])


def backward(
    dy: torch.Tensor, p: torch.Tensor, n_iters: int, system: str, solver: str, dtype: torch.dtype
) -> torch.Tensor:
    """dX for cotangents dy at P (..., n, m), as if P were a fixed point; dX has the given dtype."""
    dx = torch.empty(p.shape, dtype=dtype, device=p.device)
    if p.numel() == 0:
        return dx
    n, m = p.shape[-2:]
    computing = torch.float64 if torch.float64 in (p.dtype, dtype) else torch.float32
    solver = solver_for(solver, n, m)
    steps = cg_steps(system, n, m, n_iters)
    axis, each = slices("cols" if n < m else "rows", p, dy, dx)
    for part, g, made in each:
        part, g = (laid_out(t, computing, axis) for t in (part, g))
        if solver == "direct":
            one = _Slice(part, g, system, axis)
            made.copy_(one.gradient(one.direct()))
            continue
        # otherwise the squares of residuals would leave the range
        g, scale = of_order_one(g)
        if system == "full":
            made.copy_(_full_cg(part, g, steps).mul_(scale))
        else:
            one = _Slice(part, g, system, axis)
            made.copy_(one.gradient(one.cg(steps)).mul_(scale))
    return dx
