"""Sinkhorn-Knopp in vectorised PyTorch: forward and exact backward from the logits alone.

What a CPU runs, and a GPU for float64 or matrices beyond the kernels' range.  Same scaling
form as the kernels (docs/math.md).  Tensors are (n, m, C) with C matrices, as many as stay in cache.
In memory these stand side by side, so that every operation runs over long vectors; a few stand one
behind another, whose entries then make the vectors.  Each operation costs as much as its call where
there are few: a sum is one product and its halves, in an order that n and m alone decide.
"""

from __future__ import annotations

import functools
import os

import torch

from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow, rescaling, segment_length
from helion_sinkhorn.runtime.binade import binade
from helion_sinkhorn.runtime.pieces import Sums, computing

CACHE_BYTES = 1 << 19
"""The working set of one slice, A and its gradient: it stays in a core's second-level cache."""

SIDE_BY_SIDE = 16
"""Matrices of a slice from which on they stand side by side."""

LARGEST_START = 40.0
"""Cap on log q_0: a column e^-40 below the maxima of its rows does not show in their sums."""


@functools.cache
def _settle_exp() -> None:
    """Spend the first multi-threaded fp32 exp of the process: it can be wrong by 1.5e-4 (pytorch #188792).

    Forked children go on with one thread: the pool that exp begins, of 128 entries too, is not there after a
    fork, and the first multi-threaded operation would wait for it without end.
    """
    torch.zeros(1 << 17).exp()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _vectors(x: torch.Tensor, count: int, size: int) -> torch.Tensor:
    """(count, size, C) without values, laid out as x (n, m, C)."""
    if x.stride(-1) == 1:
        return x.new_empty(count, size, x.size(-1))
    return x.new_empty(count, x.size(-1), size).movedim(1, -1)


class _Slice:
    """The iterations on some matrices, lead side on axis 0: x (n, m, C) logits in the computing dtype.

    With u and v the factors of rows and columns, p (n, C) is 1 / u and q (m, C) is 1 / v.
    """

    def __init__(self, x: torch.Tensor, n_iters: int, eps: float) -> None:
        self.deepseek = eps > 0
        self.steps = n_iters - 1 if self.deepseek else n_iters
        self.rho = rescaling(x.size(0), x.size(1), eps, self.steps)
        self.sums = Sums(x)
        z = x - x.amax(1, keepdim=True)
        if self.deepseek:
            # as tensors: a number is made one in every call
            self.eps = x.new_full((), eps)
            self.eps_of_columns = self.eps if self.rho == 1 else x.new_full((), eps / self.rho)
            self.z = z.exp_()
            z.div_(self.sums.total(1, z).unsqueeze(1))
            self.a = z + self.eps
            self.q = self.sums.total(0, self.a) + self.eps
            self.segment = self.steps
        else:
            top = z.amax(0)
            self.z = z.sub_(top)
            self.a = z.exp()
            self.q = top.neg().clamp_(max=LARGEST_START).exp_()
            self.segment = segment_length(x.size(0), x.size(1), x.dtype)

    def _restart(self, p: torch.Tensor, q: torch.Tensor) -> None:
        """Absorb u and v into the logits."""
        self.z.sub_(p.log().unsqueeze(1)).sub_(q.log())
        self.a = self.z.exp()

    def run(self, history: list[torch.Tensor] | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """All iterations: p (1, n, C) and q (1, m, C) after the last, or of each with a history.

        A history receives A of each step; `self.ones` are q before one that begins with a restart.
        """
        count = 1 if history is None else self.steps
        of_rows, of_columns = (_vectors(self.a, count, size) for size in self.a.shape[:2])
        ps, wide, qs = of_rows.unbind(0), of_rows.unsqueeze(2).unbind(0), of_columns.unbind(0)
        first = self.steps - max(self.steps - 1, 0) // max(self.segment, 1) * self.segment
        self.restarts = range(first, self.steps, self.segment or 1)
        p, q = torch.ones_like(self.a[:, 0]), self.q
        self.ones = torch.ones_like(q) if self.restarts else None
        of_quotients = self.sums.of_quotients
        for t in range(self.steps):
            k = t if count > 1 else 0
            if t in self.restarts:
                self._restart(p, q)
                q = self.ones
            total = of_quotients(1, self.a, q)
            p = torch.addcmul(total, p, self.eps, out=ps[k]) if self.deepseek else ps[k].copy_(total)
            if self.rho != 1:
                p.mul_(self.rho)
            total = of_quotients(0, self.a, wide[k])
            q = (
                torch.addcmul(total, q, self.eps_of_columns, out=qs[k])
                if self.deepseek
                else qs[k].copy_(total)
            )
            if history is not None:
                history.append(self.a)
        if not self.steps:
            of_rows.fill_(1.0)
            of_columns.copy_(q)
        return of_rows, of_columns

    def value(self) -> torch.Tensor:
        of_rows, of_columns = self.run()
        return self.a.div_(of_rows.movedim(0, 1)).div_(of_columns)

    def gradient(self, dy: torch.Tensor) -> torch.Tensor:
        """dX by projections (docs/math.md, Adjoint): each half-step takes back the line sums of A * dA.

        That of the last half-step is as large as dY, and so is what rounding leaves of it: without eps it is
        taken back twice, since a gradient may be a thousandth of dY.
        """
        z, sums, history = self.z, self.sums, []
        v_0 = self.q.reciprocal()
        of_rows, of_columns = (t.reciprocal() for t in self.run(history))
        us, wide, vs = of_rows.unbind(0), of_rows.unsqueeze(2).unbind(0), of_columns.unbind(0)
        # D = A * dA passes a restart of the log form unchanged, and dA may overflow there
        of_log = self.steps > self.segment
        da = torch.mul(self.a if of_log else dy, wide[-1] if wide else 1.0).mul_(vs[-1] if vs else v_0)
        if of_log:
            da.mul_(dy)
        s = [torch.empty_like(v_0), torch.empty_like(self.a[:, 0])]
        along = [s[0], s[1].unsqueeze(1)]

        def take_back(a: torch.Tensor, axis: int, own: torch.Tensor, other: torch.Tensor) -> None:
            """The gradient before a half-step that made the lines along `axis` sum to a constant, in place.

            With D = A * dA and s its sums along these lines times their own factors (and rho, of rows),
            dA <- dA - other s'.
            """
            torch.mul(sums.total(axis, da) if of_log else sums.of_products(axis, a, da), own, out=s[axis])
            if axis and self.rho != 1:
                s[axis].mul_(self.rho)
            if of_log:
                da.addcmul_(a, torch.mul(along[axis], other, out=sums.terms), value=-1.0)
            else:
                da.addcmul_(along[axis], other, value=-1.0)

        if not self.deepseek:
            take_back(self.a, 0, vs[-1], wide[-1])
        for t in reversed(range(self.steps)):
            a = history.pop()
            before = self.ones if t in self.restarts else vs[t - 1] if t else v_0
            take_back(a, 0, vs[t], wide[t])
            take_back(a, 1, us[t], before)
        if not self.deepseek:
            return da if of_log else da.mul_(self.a)
        da.sub_(sums.of_products(0, self.a, da).mul_(v_0))
        dz = da.mul_(z)
        return dz.addcmul_(z, sums.total(1, dz).unsqueeze(1), value=-1.0)


def _slices(x: torch.Tensor, first: str) -> tuple[torch.Tensor, ...]:
    """x as (lead, trail, C) with as many matrices as fit in CACHE_BYTES."""
    x = x.reshape(-1, *x.shape[-2:]).movedim(0, -1)
    if first == "cols":
        x = x.transpose(0, 1)
    return x.split(max(SIDE_BY_SIDE, CACHE_BYTES // (x.size(0) * x.size(1) * 4)), -1)


def laid_out(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy of x (n, m, C), in memory (C, n, m) for few matrices."""
    n, m, count = x.shape
    if count >= SIDE_BY_SIDE:
        return x.to(dtype).contiguous()
    return torch.empty(count, n, m, dtype=dtype, device=x.device).movedim(0, -1).copy_(x)


def forward(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, out_dtype: torch.dtype
) -> torch.Tensor:
    """P for logits x (..., n, m); the contract is api.sinkhorn's."""
    out = torch.empty(x.shape, dtype=out_dtype, device=x.device)
    if x.numel() == 0:
        return out
    _settle_exp()
    eps = eps if form == "deepseek" else 0.0
    for part, made in zip(*(_slices(t, first) for t in (x, out)), strict=True):
        made.copy_(_Slice(laid_out(part, computing(x.dtype)), n_iters, eps).value())
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
    _settle_exp()
    eps = eps if form == "deepseek" else 0.0
    dtype = computing(x.dtype)
    for part, upstream, made in zip(*(_slices(t, first) for t in (x, dy, dx)), strict=True):
        g = laid_out(upstream, dtype)
        of_part = _Slice(laid_out(part, dtype), n_iters, eps)
        if may_overflow(eps):
            g, scale = of_order_one(g)
            made.copy_(of_part.gradient(g).mul_(scale))
        else:
            made.copy_(of_part.gradient(g))
    return dx
