"""Launches on lines that are too long for a program, in both forms: each half-step reads the logits once.

The launches are products with vectors, from which operations of PyTorch make the next vectors.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.ops.sinkhorn.large import eps_form
from helion_sinkhorn.ops.sinkhorn.large.calls import Calls, State, place
from helion_sinkhorn.ops.sinkhorn.large.products import plus
from helion_sinkhorn.ops.sinkhorn.scaling import rescaling
from helion_sinkhorn.runtime.launch import Tensors


def divided(log_r: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    """log(r / total), or -inf where r is 0."""
    return torch.where(log_r == -torch.inf, log_r, log_r - total.log())


def shared(total: torch.Tensor, log_r: torch.Tensor) -> torch.Tensor:
    """total / r, or 0 where r is 0."""
    return (total * log_r.neg().exp()).masked_fill_(log_r == -torch.inf, 0.0)


def rounded(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(a + b, the factor of its rounding error), as `kernels.rounded` returns them."""
    exact = a.double() + b
    total = exact.float()
    return total, (exact - total).float().masked_fill_(total == -torch.inf, 0.0).exp_()


class Products:
    """Products of exp(s x - base + f + g), or of exp(x - base) + f, with vectors."""

    def __init__(self, calls: Calls, of: State, dy: torch.Tensor | None = None) -> None:
        self._calls, self._of, self._x = calls, of, calls.x
        self._dy = calls.x if dy is None else dy
        self.base = of.base
        self.linear = of.eps > 0
        self.ones_of_rows, self.ones = torch.ones_like(of.base), torch.ones_like(of.gs[0])
        self.f = of.eps / of.fs[0] if self.linear else of.fs[0]
        self.g = of.gs[0]

    def rows(self, v, p=None, eps: float = 0.0, left_out=None) -> torch.Tensor:
        """A v, plus eps p; with left_out, of A (dY - left_out)."""
        return self._made("rows", v, self.ones if left_out is None else left_out, p, eps, left_out)

    def columns(self, u, p=None, eps: float = 0.0, left_out=None) -> torch.Tensor:
        """A' u, plus eps p."""
        return self._made("columns", u, self.ones if left_out is None else left_out, p, eps, left_out)

    def _made(self, side: str, vector, other, p, eps: float, left_out) -> torch.Tensor:
        out = torch.empty_like(self.base if side == "rows" else self.ones)
        self._calls.launch(
            f"sinkhorn_large_wide_{side}", self._x, self._dy, self._of.scale, self.base, self.f, self.g,
            vector, other, out, values=(left_out is not None, self.linear),
        )  # fmt: skip
        return plus(self._of.ranks.add(out, -1 if side == "rows" else -2), p, eps)


def iterations(calls: Calls, of: State, n_iters: int) -> None:
    """Compute base, f, g and rest, or u and v, of every iteration."""
    sums = calls.empty(*of.base.shape)
    calls.launch("sinkhorn_large_wide_first", calls.x, of.scale, of.base, sums)
    of.ranks.add_relative(of.base, sums, -1)
    (_eps_iterations if of.eps else _log_iterations)(calls, of, sums, n_iters)


def _eps_iterations(calls: Calls, of: State, sums: torch.Tensor, n_iters: int) -> None:
    us, vs, count = of.fs, of.gs, len(of.fs)
    torch.reciprocal(sums, out=us[0])
    product = Products(calls, of)
    q = product.columns(us[0]).add_(of.eps)
    rho = rescaling(*of.ranks.size(calls.x), of.eps, n_iters - 1)

    def keep(t: int, u: torch.Tensor, v: torch.Tensor) -> None:
        us[place(t, count)], vs[place(t, count)] = u, v

    eps_form.iterate(product, us[0].reciprocal(), q, n_iters, of.eps, rho, keep)


def _log_iterations(calls: Calls, of: State, sums: torch.Tensor, n_iters: int) -> None:
    fs, gs, count = of.fs, of.gs, len(of.fs)
    fs[0] = divided(of.log_r, sums)
    largest, sums = (calls.empty(*gs[0].shape) for _ in range(2))
    calls.launch("sinkhorn_large_wide_logs", calls.x, of.scale, of.base, fs[0], largest, sums)
    of.ranks.add_relative(largest, sums, -2)
    gs[0], of.rests[0] = rounded(-largest, divided(of.log_c, sums))
    product = Products(calls, of)
    for t in range(1, n_iters):
        before, now = place(t - 1, count), place(t, count)
        # as in `kernels.moved`
        whole = fs[before].round().masked_fill_(fs[before] == -torch.inf, 0.0)
        product.base = of.bases[now] = of.bases[before] - whole
        # with the potentials of the step before, no sum is larger than its share, and none is too small
        product.f = fs[before] - whole
        fs[now] = product.f + divided(of.log_r, product.rows(of.rests[before]))
        product.f = fs[now]
        gs[now], of.rests[now] = rounded(gs[before], divided(of.log_c, product.columns(product.ones_of_rows)))
        product.g = gs[now]


def taken_back(
    calls: Calls, of: State, dy: torch.Tensor, own: Tensors, rows: torch.Tensor, columns: torch.Tensor
) -> None:
    """Compute the vectors of the terms that each iteration subtracts, as other launches of its form do."""
    (_eps_taken_back if of.eps else _log_taken_back)(Products(calls, of, dy), of, own, rows, columns)


def _eps_taken_back(product: Products, of: State, own: Tensors, rows, columns) -> None:
    us, vs, steps = of.fs, of.gs, len(of.fs) - 1
    rho = rescaling(rows.size(-1), columns.size(-1), of.eps, steps)
    u, v, nothing = us[-1], vs[-1], torch.zeros_like(vs[-1])
    s = of_columns = product.columns(u, left_out=nothing).mul_(v)
    of_rows = None
    if steps:
        of_rows = product.rows(v, left_out=s).mul_(u)
        of_columns = product.columns(u, left_out=s).mul_(v)
    lefts, rights = eps_form.take_back(product, us, vs, of.eps, rho, s, of_rows, of_columns)
    for t in range(steps + 1):
        columns[t] = rights[2 * (steps - t)]
        if t:
            rows[t] = -lefts[2 * (steps - t) + 1]


def _log_taken_back(product: Products, of: State, own: Tensors, rows, columns) -> None:
    (own_f, own_g), fs, gs, last = own, of.fs, of.gs, len(of.fs) - 1
    product.base, product.f, product.g = of.bases[last], fs[last], gs[last]
    rest, left_out = of.rests[last], torch.zeros_like(own_g)
    # twice, since the first sums are the largest of all, and so are their rounding errors
    for _ in range(2):
        left = torch.addcmul(own_g, rest, product.columns(product.ones_of_rows, left_out=left_out))
        left_out = left_out + shared(left, of.log_c)
    columns[last] = left_out * rest
    for t in range(last, 0, -1):
        product.base, product.f, product.g = of.bases[t], fs[t], gs[t]
        if t == last:
            sums = product.rows(rest, own_f, 1.0, left_out)
        else:
            sums = product.rows(columns[t]).neg_()
        rows[t] = shared(sums, of.log_r)
        product.g = gs[t - 1]
        columns[t - 1] = shared(product.columns(rows[t]).neg_(), of.log_c) * of.rests[t - 1].square()
