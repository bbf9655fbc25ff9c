"""Large matrices step by step in PyTorch, in both forms, for correct implementations and for faults.

Rows are complete, columns are added up in parts, one a block of rows; the adjoint passes sums of lines from
an iteration to the one before it, as docs/dev/math.md has it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.columns import Change, at_once, same
from ci.gate.wrong import Results, by_eager
from helion_sinkhorn.lab.sinkhorn.large.budget import RESULTS, exact
from helion_sinkhorn.lab.sinkhorn.large.evidence import EVIDENCE, run
from helion_sinkhorn.lab.sinkhorn.large.workloads import LargeWorkload

Parts = Callable[[torch.Tensor, int], torch.Tensor]
"""(parts (B, m, K) of columns' sums, iteration) -> what is added up."""


def whole(parts: torch.Tensor, t: int) -> torch.Tensor:
    return parts


@dataclass(frozen=True)
class Steps:
    """A field is a choice of implementations or a place for a fault."""

    rows: Change = at_once
    """The sum over a row."""
    columns: Change = at_once
    """The sum over the parts of a column, which are last."""
    block: int = 8
    """Rows of a part."""
    machine: Arithmetic = PLAIN
    """Its exponential."""
    top: Change = lambda x: x.amax(-1)
    """What a row's logits are relative to."""
    parts: Parts = whole
    """Applied to the parts of the forward."""
    parts_back: Parts = whole
    """Applied to the parts of the backward."""
    most: Change = lambda x: x.amax(-2)
    """What the columns' first sums are relative to."""
    stored: Change = same
    """Applied to g, of each iteration, or to v."""
    first_looks: int = 2
    """How often the sums of the last columns' step are taken back; with eps what it leaves is added up, or
    made of them."""
    last_look: bool = True
    """Whether the first rows' step takes the sums of the gradient itself; with eps it has no others."""
    rescaled: bool = True
    """Whether u and v of a rectangle stay in range; with eps alone."""
    kept: Callable[[int], bool] = lambda t: True
    """Whether the gradient has the terms of an iteration, counted from the last one."""
    of_rows: Callable[[list[torch.Tensor]], torch.Tensor] = sum
    """The gradient of the logarithms of a marginal, from the sums of all iterations, the last one first."""
    dtype: torch.dtype = torch.float32

    def __call__(self, w: LargeWorkload, x: torch.Tensor, *given: torch.Tensor) -> Results:
        *marginals, dy = (t.to(self.dtype) for t in given)
        turned = w.first == "cols"
        x, dy = (t.to(self.dtype).mT if turned else t.to(self.dtype) for t in (x, dy))
        if w.eps:
            results = self.with_eps(w.n_iters, w.eps, x, dy)
        else:
            log_r, log_c = reversed(marginals) if turned else marginals
            results = self.iterate(w.n_iters, x, log_r, log_c, dy)
        p, dx = (t.mT.to(w.dtype) if turned else t.to(w.dtype) for t in results[:2])
        # whole vectors are float32, whatever the logits
        sums = [t.float() for t in (reversed(results[2:]) if turned else results[2:])]
        return dict(zip(RESULTS, (p, dx, *sums), strict=False))

    def exp(self, x: torch.Tensor) -> torch.Tensor:
        return self.machine(x.exp(), self.machine.EXP)

    def over_columns(self, t: torch.Tensor, parts: Parts, k: int) -> torch.Tensor:
        """The sums over columns of t (B, n, m)."""
        padded = torch.nn.functional.pad(t, (0, 0, 0, -t.size(-2) % self.block))
        blocks = padded.unflatten(-2, (-1, self.block)).mT
        return self.columns(parts(self.rows(blocks).mT, k))

    def iterate(
        self, n_iters: int, x: torch.Tensor, log_r: torch.Tensor, log_c: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """P, dX and the gradients of the logarithms of both marginals."""
        r, c = log_r.exp(), log_c.exp()
        z = x - self.top(x).unsqueeze(-1)
        fs, gs = [], [torch.zeros_like(log_c)]
        for t in range(n_iters):
            w = z + gs[-1].unsqueeze(-2)
            shift = w.amax(-1) if t else 0.0 * w[..., 0]
            e = self.exp(w - shift.unsqueeze(-1))
            fs.append(log_r - self.rows(e).log() - shift)
            w = w + fs[-1].unsqueeze(-1)
            most = w.amax(-2) if t else self.most(w)
            sums = self.over_columns(self.exp(w - most.unsqueeze(-2)), self.parts, t)
            gs.append(self.stored(gs[-1] + log_c - sums.log() - most))

        def matrix(f: int, g: int) -> torch.Tensor:
            return self.exp(z + gs[g].unsqueeze(-2) + fs[f].unsqueeze(-1))

        p = matrix(-1, -1)
        s = torch.zeros_like(c)
        for _ in range(self.first_looks):
            s = s + self.over_columns(p * (dy - s.unsqueeze(-2)), self.parts_back, n_iters) / c
        of_columns, of_rows = [s], []
        dx = p * (dy - s.unsqueeze(-2))
        for t in range(n_iters - 1, 0, -1):
            p_t, earlier = matrix(t, t + 1), matrix(t, t)
            if t < n_iters - 1:
                q = -self.rows(p_t * of_columns[-1].unsqueeze(-2)) / r
            else:
                q = self.rows(dx) / r
            if self.kept(n_iters - 1 - t):
                dx = dx - earlier * q.unsqueeze(-1)
            of_rows.append(q)
            s = -self.over_columns(earlier * q.unsqueeze(-1), self.parts_back, t) / c
            of_columns.append(s)
            if self.kept(n_iters - t):
                dx = dx - matrix(t - 1, t) * s.unsqueeze(-2)
        own = dx if self.last_look or n_iters == 1 else -matrix(0, 1) * of_columns[-1].unsqueeze(-2)
        q = self.rows(own) / r
        of_rows.append(q)
        dx = dx - matrix(0, 0) * q.unsqueeze(-1)
        return p, dx, self.of_rows(of_rows) * r, sum(of_columns) * c

    def with_eps(
        self, n_iters: int, eps: float, x: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """P and dX of the deepseek form."""
        e = self.exp(x - self.top(x).unsqueeze(-1))
        z = e / self.rows(e).unsqueeze(-1)
        a = z + eps
        rho = a.size(-2) / a.size(-1) if self.rescaled else 1.0
        us = [torch.ones_like(a[..., 0])]
        vs = [self.stored((self.over_columns(a, self.parts, 0) + eps).reciprocal())]
        for t in range(1, n_iters):
            us.append(((self.rows(a * vs[-1].unsqueeze(-2)) + eps / us[-1]) * rho).reciprocal())
            sums = self.over_columns(a * us[-1].unsqueeze(-1), self.parts, t)
            vs.append(self.stored((sums + eps / rho / vs[-1]).reciprocal()))
        p = a * us[-1].unsqueeze(-1) * vs[-1].unsqueeze(-2)
        s = torch.zeros_like(vs[0])
        if self.first_looks:
            s = self.over_columns(p * dy, self.parts_back, n_iters)
        da = dy * us[-1].unsqueeze(-1) * vs[-1].unsqueeze(-2)
        r = self.rows(p * (dy - s.unsqueeze(-2)))
        for t in range(n_iters - 1, 0, -1):
            u, v, earlier = us[t], vs[t], vs[t - 1]
            k = n_iters - 1 - t
            if k:
                r = r - u * self.rows(a * (v * s).unsqueeze(-2))
            if not k or self.kept(k):
                da = da - u.unsqueeze(-1) * (v * s).unsqueeze(-2)
            if k or self.first_looks < 2:
                left = eps / rho * s * v / earlier
            else:
                left = self.over_columns(p * (dy - s.unsqueeze(-2)), self.parts_back, n_iters)
            q = rho * u * r
            if self.kept(k):
                da = da - q.unsqueeze(-1) * earlier.unsqueeze(-2)
            s = left - earlier * self.over_columns(a * q.unsqueeze(-1), self.parts_back, t)
            r = eps * q / us[t - 1]
        if n_iters == 1 or self.kept(n_iters - 1):
            da = da - (vs[0] * s).unsqueeze(-2)
        return p, z * (da - self.rows(z * da).unsqueeze(-1)) if self.last_look else z * da


EXACT = functools.lru_cache(maxsize=4)(Steps(dtype=torch.float64))


def specification(**change) -> Callable[..., Results]:
    """The equations in float64 and autograd, with other arguments; a function takes the workload."""

    def of(w: LargeWorkload, x: torch.Tensor, *given: torch.Tensor) -> Results:
        other = {name: value(w) if callable(value) else value for name, value in change.items()}
        return _of_reference(w, torch.float64, x, *given, **other)

    return of


def _of_reference(w, dtype, x, *given, **change) -> Results:
    *marginals, dy = given
    results = exact(x, marginals, dy, dtype, **{**w.options, **change})
    dtypes = {"P": w.dtype, "dX": w.dtype}
    return {name: t.to(dtypes.get(name, torch.float32)) for name, t in results.items()}


@functools.lru_cache(maxsize=2)
def pytorch(w: LargeWorkload, *inputs: torch.Tensor) -> Results:
    """The specification as PyTorch evaluates it in float32, and autograd."""
    return _of_reference(w, torch.float32, *inputs)


right = by_eager(run, EVIDENCE.results)
