"""Sinkhorn-Knopp in vectorised PyTorch: forward and exact backward from the logits alone.

What a CPU runs, and a GPU for float64 or matrices beyond the kernels' range.  Same scaling
form as the kernels (docs/math.md).  Matrices stand last, (n, m, C) with C of them side by
side, so every operation runs over long contiguous vectors; C is chosen to stay in cache.
"""

from __future__ import annotations

import functools
import os

import torch

from helion_sinkhorn.ops.sinkhorn.scaling import may_overflow, rescaling, segment_length
from helion_sinkhorn.runtime.binade import binade
from helion_sinkhorn.runtime.pieces import computing

CACHE_BYTES = 1 << 19
"""The working set of one slice, A and its gradient: it stays in a core's second-level cache."""

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


def _contract(a: torch.Tensor, w: torch.Tensor, axis: int, out: torch.Tensor, scale: float) -> torch.Tensor:
    """out = scale out + sum over the other axis of a w; a (n, m, C), axis 0 keeps rows, 1 columns."""
    if scale:
        out.mul_(scale)
    else:
        out.zero_()
    for k in range(w.size(0)):
        out.addcmul_(a.select(1 - axis, k), w[k])
    return out


def _total(a: torch.Tensor, axis: int) -> torch.Tensor:
    """Sum over `axis` in one fixed order; the order within torch's sum and softmax depends on the batch."""
    total = a.select(axis, 0).clone()
    for k in range(1, a.size(axis)):
        total.add_(a.select(axis, k))
    return total


def _take_back(
    a: torch.Tensor,
    da: torch.Tensor,
    axis: int,
    u: torch.Tensor,
    v: torch.Tensor,
    products: torch.Tensor,
    of_log: bool,
    scale: float = 1.0,
) -> None:
    """The gradient before a half-step that made the lines along `axis` sum to a constant, in place.

    With D = A * dA and s its sums along these lines, dA <- dA - scale u (v * s)', or scale (u * s) v'.

    Args:
        products: like da, overwritten.
        of_log: da is D, not dA.
    """
    s = _total(da if of_log else torch.mul(a, da, out=products), axis).mul_(v if axis == 0 else u)
    if scale != 1:
        s.mul_(scale)
    u, v = (u, s) if axis == 0 else (s, v)
    for i in range(a.size(0)):
        if of_log:
            da[i].addcmul_(a[i], torch.mul(v, u[i], out=products[i]), value=-1.0)
        else:
            da[i].addcmul_(v, u[i], value=-1.0)


class _Slice:
    """The iterations on some matrices, lead side on axis 0: x (n, m, C) logits in the computing dtype."""

    def __init__(self, x: torch.Tensor, n_iters: int, eps: float) -> None:
        self.deepseek = eps > 0
        self.eps = eps
        self.steps = n_iters - 1 if self.deepseek else n_iters
        self.rho = rescaling(x.size(0), x.size(1), eps, self.steps)
        self.p = x.new_ones(x.size(0), x.size(2))
        if self.deepseek:
            e = (x - x.amax(1, keepdim=True)).exp_()
            self.z = e.div_(_total(e, 1).unsqueeze(1))
            self.a = self.z + eps
            self.q = _total(self.a, 0).add_(eps)
        else:
            z = x - x.amax(1, keepdim=True)
            top = z.amax(0)
            self.z = z.sub_(top)
            self.a = self.z.exp()
            self.q = top.neg().clamp_(max=LARGEST_START).exp_()
        self.segment = self.steps if self.deepseek else segment_length(x.size(0), x.size(1), x.dtype)

    def step(self, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One iteration from v = 1/q: (u, v) after it."""
        self.p = _contract(self.a, v, 0, self.p, self.eps)
        if self.rho != 1:
            self.p.mul_(self.rho)
        u = self.p.reciprocal()
        self.q = _contract(self.a, u, 1, self.q, self.eps / self.rho)
        return u, self.q.reciprocal()

    def restart(self) -> torch.Tensor:
        """Absorb u and v into the logits; v is 1 again."""
        self.z = self.z - self.p.log().unsqueeze(1) - self.q.log()
        self.a = self.z.exp()
        self.p.fill_(1.0)
        self.q.fill_(1.0)
        return torch.ones_like(self.q)

    def run(self, history: list | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """All iterations: the last (u, v); `history` receives (a, v before, u, v) of each."""
        u, v = self.p.reciprocal(), self.q.reciprocal()
        head = self.steps - max(self.steps - 1, 0) // max(self.segment, 1) * self.segment
        for t in range(self.steps):
            if t >= head and (t - head) % self.segment == 0:
                before = self.restart()
            else:
                before = v
            u, v = self.step(before)
            if history is not None:
                history.append((self.a, before, u, v))
        return u, v

    def value(self) -> torch.Tensor:
        u, v = self.run()
        return self.a.mul_(u.unsqueeze(1)).mul_(v)

    def gradient(self, dy: torch.Tensor) -> torch.Tensor:
        """dX by projections (docs/math.md, Adjoint): each half-step takes back the line sums of A * dA.

        That of the last half-step is as large as dY, and so is what rounding leaves of it: without eps it is
        taken back twice, since a gradient may be a thousandth of dY.
        """
        z, v_0 = self.z, self.q.reciprocal()
        history: list = []
        u, v = self.run(history)
        a = self.a
        # D = A * dA passes a restart of the log form unchanged, and dA may overflow there
        of_log = self.steps > self.segment
        products = torch.empty_like(a)
        da = ((a if of_log else dy) * u.unsqueeze(1)).mul_(v)
        if of_log:
            da.mul_(dy)
        if not self.deepseek:
            _take_back(a, da, 0, u, v, products, of_log)
        while history:
            a, before, u, v = history.pop()
            _take_back(a, da, 0, u, v, products, of_log)
            _take_back(a, da, 1, u, before, products, of_log, self.rho)
        if not self.deepseek:
            return da if of_log else da.mul_(a)
        da.sub_(_total(torch.mul(a, da, out=products), 0).mul_(v_0))
        dz = da.mul_(z)
        return dz.addcmul_(z, _total(dz, 1).unsqueeze(1), value=-1.0)


def _slices(x: torch.Tensor, first: str) -> tuple[torch.Tensor, int]:
    """x as (lead, trail, B), and how many matrices fit in CACHE_BYTES."""
    x = x.reshape(-1, *x.shape[-2:]).movedim(0, -1)
    if first == "cols":
        x = x.transpose(0, 1)
    return x, max(16, CACHE_BYTES // (x.size(0) * x.size(1) * 4))


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
        part = xs[..., rows].to(computing(x.dtype)).contiguous()
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
        part = xs[..., rows].to(dtype).contiguous()
        g, scale = dys[..., rows].to(dtype).contiguous(), None
        if may_overflow(eps):
            g, scale = of_order_one(g)
        part = _Slice(part, n_iters, eps).gradient(g)
        dxs[..., rows] = part if scale is None else part.mul_(scale)
    return dx
