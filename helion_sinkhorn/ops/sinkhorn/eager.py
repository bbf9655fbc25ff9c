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


def _take_back(
    a: torch.Tensor,
    da: torch.Tensor,
    axis: int,
    u: torch.Tensor,
    v: torch.Tensor,
    sums: Sums,
    of_log: bool,
    scale: float = 1.0,
) -> None:
    """The gradient before a half-step that made the lines along `axis` sum to a constant, in place.

    With D = A * dA and s its sums along these lines, dA <- dA - scale u (v * s)', or scale (u * s) v'.

    Args:
        u: (n, 1, C).
        v: (m, C).
        of_log: da is D, not dA.
    """
    s = sums.total(axis, da) if of_log else sums.of(axis, a, da)
    s = s * (u.squeeze(1) if axis else v)
    if scale != 1:
        s.mul_(scale)
    u, v = (s.unsqueeze(1), v) if axis else (u, s)
    if of_log:
        da.addcmul_(a, torch.mul(u, v, out=sums.terms), value=-1.0)
    else:
        da.addcmul_(v, u, value=-1.0)


class _Slice:
    """The iterations on some matrices, lead side on axis 0: x (n, m, C) logits in the computing dtype.

    Of each vector over rows, (n, C), there is a view (n, 1, C): `Lines.rows`.
    """

    def __init__(self, x: torch.Tensor, n_iters: int, eps: float) -> None:
        self.deepseek = eps > 0
        self.eps = eps
        self.steps = n_iters - 1 if self.deepseek else n_iters
        self.rho = rescaling(x.size(0), x.size(1), eps, self.steps)
        self.sums = Sums(x)
        self.p = torch.ones_like(x[:, 0])
        if self.deepseek:
            e = (x - x.amax(1, keepdim=True)).exp_()
            self.z = e.div_(self.sums.total(1, e).unsqueeze(1))
            self.a = self.z + eps
            self.q = self.sums.total(0, self.a) + eps
        else:
            z = x - x.amax(1, keepdim=True)
            top = z.amax(0)
            self.z = z.sub_(top)
            self.a = self.z.exp()
            self.q = top.neg().clamp_(max=LARGEST_START).exp_()
        self.segment = self.steps if self.deepseek else segment_length(x.size(0), x.size(1), x.dtype)
        self.of_rows, self.of_columns = (
            torch.tensor(w, dtype=x.dtype, device=x.device) for w in (eps, eps / self.rho)
        )

    def half_step(self, axis: int, w: torch.Tensor, p: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
        """p <- eps p + the sum over `axis` of a w, in place."""
        total = self.sums.of(axis, self.a, w)
        return torch.addcmul(total, p, eps, out=p) if self.deepseek else p.copy_(total)

    def step(self, v: torch.Tensor, u_out: torch.Tensor, v_out: torch.Tensor) -> None:
        """One iteration from v = 1/q (m, C): u (n, C) and v after it."""
        p = self.half_step(1, v, self.p, self.of_rows)
        if self.rho != 1:
            p.mul_(self.rho)
        torch.reciprocal(p, out=u_out)
        torch.reciprocal(self.half_step(0, u_out.unsqueeze(1), self.q, self.of_columns), out=v_out)

    def restart(self) -> torch.Tensor:
        """Absorb u and v into the logits; v is 1 again."""
        self.z.sub_(self.p.log().unsqueeze(1)).sub_(self.q.log())
        self.a = self.z.exp()
        self.p.fill_(1.0)
        self.q.fill_(1.0)
        return torch.ones_like(self.q)

    def run(self, history: list | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """All iterations: the last (u, v), (n, 1, C) and (m, C); `history` receives (a, v before, u, v) of each."""
        u, v = self.p.reciprocal(), self.q.reciprocal()
        head = self.steps - max(self.steps - 1, 0) // max(self.segment, 1) * self.segment
        for t in range(self.steps):
            if t >= head and (t - head) % self.segment == 0:
                v = self.restart()
            before = v
            if history is not None:
                u, v = torch.empty_like(u), torch.empty_like(v)
            self.step(before, u, v)
            if history is not None:
                history.append((self.a, before, u.unsqueeze(1), v))
        return u.unsqueeze(1), v

    def value(self) -> torch.Tensor:
        u, v = self.run()
        return self.a.mul_(u).mul_(v)

    def gradient(self, dy: torch.Tensor) -> torch.Tensor:
        """dX by projections (docs/math.md, Adjoint): each half-step takes back the line sums of A * dA.

        That of the last half-step is as large as dY, and so is what rounding leaves of it: without eps it is
        taken back twice, since a gradient may be a thousandth of dY.
        """
        z, sums, v_0 = self.z, self.sums, self.q.reciprocal()
        history: list = []
        u, v = self.run(history)
        a = self.a
        # D = A * dA passes a restart of the log form unchanged, and dA may overflow there
        of_log = self.steps > self.segment
        da = ((a if of_log else dy) * u).mul_(v)
        if of_log:
            da.mul_(dy)
        if not self.deepseek:
            _take_back(a, da, 0, u, v, sums, of_log)
        while history:
            a, before, u, v = history.pop()
            _take_back(a, da, 0, u, v, sums, of_log)
            _take_back(a, da, 1, u, before, sums, of_log, self.rho)
        if not self.deepseek:
            return da if of_log else da.mul_(a)
        da.sub_(sums.of(0, a, da).mul_(v_0))
        dz = da.mul_(z)
        return dz.addcmul_(z, sums.total(1, dz).unsqueeze(1), value=-1.0)


def _slices(x: torch.Tensor, first: str) -> tuple[torch.Tensor, int]:
    """x as (lead, trail, B), and how many matrices fit in CACHE_BYTES."""
    x = x.reshape(-1, *x.shape[-2:]).movedim(0, -1)
    if first == "cols":
        x = x.transpose(0, 1)
    return x, max(SIDE_BY_SIDE, CACHE_BYTES // (x.size(0) * x.size(1) * 4))


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
    xs, size = _slices(x, first)
    outs, _ = _slices(out, first)
    for begin in range(0, xs.size(-1), size):
        rows = slice(begin, begin + size)
        part = laid_out(xs[..., rows], computing(x.dtype))
        outs[..., rows] = _Slice(part, n_iters, eps).value()
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
    xs, size = _slices(x, first)
    dys, _ = _slices(dy, first)
    dxs, _ = _slices(dx, first)
    for begin in range(0, xs.size(-1), size):
        rows = slice(begin, begin + size)
        part = laid_out(xs[..., rows], dtype)
        g, scale = laid_out(dys[..., rows], dtype), None
        if may_overflow(eps):
            g, scale = of_order_one(g)
        part = _Slice(part, n_iters, eps).gradient(g)
        dxs[..., rows] = part if scale is None else part.mul_(scale)
    return dx
