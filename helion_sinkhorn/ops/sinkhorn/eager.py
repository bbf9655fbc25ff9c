"""Sinkhorn-Knopp in vectorised PyTorch: forward and exact backward from the logits only.

This is what a CPU runs, and a GPU for float64 or matrices beyond the kernels' range.  It has the scaling form
of the kernels (docs/dev/math.md), but for a few iterations.  Tensors are (n, m, C) with C matrices, as many
as stay in cache.  With few matrices the calls of operations take most of the time, so the operations are as
few as possible.
"""

from __future__ import annotations

import functools
import os

import torch

from helion_sinkhorn.ops.sinkhorn import definition
from helion_sinkhorn.ops.sinkhorn.line_sums import Sums, laid_out, slices
from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow, rescaling, segment_length
from helion_sinkhorn.runtime.binade import binade
from helion_sinkhorn.runtime.pieces import COMPUTING

LARGEST_START = 40.0
"""Cap on log q_0: a column that is e^-40 below the maxima of its rows does not change their sums."""


@functools.cache
def settle_exp() -> None:
    """Run the first multi-threaded fp32 exp of the process, which may be wrong by 1.5e-4 (pytorch #188792).

    Forked children continue with one thread.  The thread pool that exp starts, even for 128 entries, does not
    exist after a fork, and the first multi-threaded operation would wait for it forever.
    """
    torch.zeros(1 << 17).exp()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _room(like: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
    """That many tensors like one of two axes, without values."""
    if like.is_contiguous():
        return like.new_empty(count, *like.shape).unbind(0)
    return like.new_empty(count, *like.t().shape).mT.unbind(0)


class _Slice:
    """The iterations on some matrices, lead side on axis 0: x (n, m, C) logits in the computing dtype.

    With u and v the factors of rows and columns, p (n, C) is 1 / u and q (m, C) is 1 / v.  Lines along `axis`
    are contiguous.
    """

    def __init__(self, x: torch.Tensor, n_iters: int, eps: float, axis: int | None) -> None:
        self.deepseek = eps > 0
        self.steps = n_iters - 1 if self.deepseek else n_iters
        n, m = x.shape[:2]
        self.rho = 1.0 if n == m else rescaling(n, m, eps, self.steps)
        self.sums = Sums(x, axis)
        z = x - x.amax(1, keepdim=True)
        if self.deepseek:
            # as tensors: a number is made one in every call
            self.eps = x.new_full((), eps)
            self.eps_of_columns = self.eps if self.rho == 1 else x.new_full((), eps / self.rho)
            self.z = z.exp_()
            z.div_(self.sums.total(1, z).unsqueeze(1))
            self.a = z + self.eps
            self.turned = self.sums.turned(self.a)
            self.q = self.sums.total(0, self.turned, turned=True).add(self.eps)
            self.segment = self.steps
        else:
            # in the order of memory: of 4 matrices of 128 x 128 z.amax(0) takes 230 us, and this 5
            top = z.amax(0) if z.is_contiguous() else z.permute(2, 0, 1).amax(1).t()
            self.z = z.sub_(top)
            self.a = z.exp()
            self.turned = self.sums.turned(self.a)
            self.q = top.neg().clamp_(max=LARGEST_START).exp_()
            self.segment = segment_length(x.size(0), x.size(1), x.dtype)

    def _restart(self, p: torch.Tensor, q: torch.Tensor) -> None:
        """Absorb u and v into the logits."""
        self.z.sub_(p.log().unsqueeze(1)).sub_(q.log())
        self.a = self.z.exp()
        self.turned = self.sums.turned(self.a)

    def run(self, history: list | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """The last p (n, 1, C) and q; `history` receives (A, q before, p, p (n, 1, C), q) of each step."""
        p, q = torch.ones_like(self.a[:, 0]), self.q
        kept = self.steps if history is not None else 1
        rows, columns = _room(p, kept), _room(q, kept)
        last = self.steps - max(self.steps - 1, 0) // max(self.segment, 1) * self.segment
        restarts = range(last, self.steps, self.segment or 1)
        quotient = self.sums.quotient
        of_rows, add_rows, row_sums = self.sums.over(1)
        of_columns, add_columns, column_sums = self.sums.over(0, turned=True)
        wide = p.unsqueeze(1)
        for t in range(self.steps):
            if history is not None or not t:
                p_out, q_out = rows[t], columns[t]
                wide = p_out.unsqueeze(1)
            if t in restarts:
                self._restart(p, q)
                q = torch.ones_like(q)
            before = q
            quotient(self.a, q, out=of_rows)
            for add in add_rows:
                add()
            p = torch.addcmul(row_sums, p, self.eps, out=p_out) if self.deepseek else p_out.copy_(row_sums)
            if self.rho != 1:
                p.mul_(self.rho)
            quotient(self.turned, wide, out=of_columns)
            for add in add_columns:
                add()
            if self.deepseek:
                q = torch.addcmul(column_sums, q, self.eps_of_columns, out=q_out)
            else:
                q = q_out.copy_(column_sums)
            if history is not None:
                history.append((self.a, before, p, wide, q))
        return wide, q

    def write(self, out: torch.Tensor) -> None:
        """P, rounded once."""
        p, q = self.run()
        torch.div(self.a.div_(p), q, out=out)

    def gradient(self, dy: torch.Tensor) -> torch.Tensor:
        """dX by projections (docs/dev/math.md, Adjoint): each half-step subtracts the line sums of A * dA.

        The line sums of the last half-step are as large as dY, and their rounding errors may exceed a
        gradient of a thousandth of dY.  So without eps they are subtracted twice.
        """
        z, sums, q_0 = self.z, self.sums, self.q
        history: list = []
        p, q = self.run(history)
        a, rho = self.a, self.rho
        # D = A * dA passes a restart of the log form unchanged, and dA may overflow there
        of_log = self.steps > self.segment
        da = ((a if of_log else dy) / p).div_(q)
        if of_log:
            da.mul_(dy)
        s = [torch.empty_like(q), torch.empty_like(p)]
        lines = [s[0], s[1].squeeze(1)]

        def take_back(axis: int, own: torch.Tensor, other: torch.Tensor) -> None:
            """Make the gradient before a half-step that normalised the lines along `axis`, in place.

            With D = A * dA and s the sums of these lines divided by their p or q (times rho for rows),
            dA <- dA - s / (q or p of the other side).
            """
            total = sums.total(axis, da) if of_log else sums.of_products(axis, a, da)
            torch.div(total, own, out=lines[axis])
            if axis and rho != 1:
                s[1].mul_(rho)
            if of_log:
                da.addcmul_(a, torch.div(s[axis], other, out=sums.terms), value=-1.0)
            else:
                da.addcdiv_(s[axis], other, value=-1.0)

        if not self.deepseek:
            take_back(0, q, p)
        while history:
            a, before, p, wide, q = history.pop()
            take_back(0, q, wide)
            take_back(1, p, before)
        if not self.deepseek:
            return da if of_log else da.mul_(self.a)
        da.sub_(sums.of_products(0, self.a, da).div_(q_0))
        dz = da.mul_(z)
        return dz.addcmul_(z, sums.total(1, dz).unsqueeze(1), value=-1.0)


def forward(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, out_dtype: torch.dtype
) -> torch.Tensor:
    """P for logits x (..., n, m); the contract is api.sinkhorn's."""
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    if x.numel() == 0:
        return out
    settle_exp()
    eps, dtype = eps if form == "deepseek" else 0.0, COMPUTING[x.dtype]
    axis, each = slices(first, x, out)
    for part, made in each:
        part = laid_out(part, dtype, axis)
        if axis == 1 and definition.suits(n_iters, eps):
            definition.forward(part.permute(2, 0, 1), n_iters, eps, made.permute(2, 0, 1))
        else:
            _Slice(part, n_iters, eps, axis).write(made)
    return out


def of_order_one(dy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(dy / s, s) for dy (n, m, C), with a power of two s (C,) near the largest entry of each matrix."""
    s, reciprocal = binade(dy.abs().amax((0, 1)))
    return dy * reciprocal, s


def backward(
    dy: torch.Tensor, x: torch.Tensor, n_iters: int, eps: float, form: str, first: str
) -> torch.Tensor:
    """dX for cotangents dy of `forward`'s result; dX has the dtype of x."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return dx
    settle_exp()
    eps, dtype = eps if form == "deepseek" else 0.0, COMPUTING[x.dtype]
    axis, each = slices(first, x, dy, dx)
    for part, upstream, made in each:
        part, g, scale = laid_out(part, dtype, axis), laid_out(upstream, dtype, axis), None
        if may_overflow(eps):
            g, scale = of_order_one(g)
        if axis == 1 and definition.suits(n_iters, eps):
            of_matrices = definition.backward(*(t.permute(2, 0, 1) for t in (part, g)), n_iters, eps)
            gradient = of_matrices.permute(1, 2, 0)
        else:
            gradient = _Slice(part, n_iters, eps, axis).gradient(g)
        made.copy_(gradient if scale is None else gradient.mul_(scale))
    return dx
