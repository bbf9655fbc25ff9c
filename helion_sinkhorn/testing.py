"""What tests, tuner and accuracy gate share: inputs, the exact result, the error allowed.

The budget is no round number: `error_budget` runs the scaling form in float64 with every
rounding of the kernels replaced by a random relative error of the size of its bound, and takes
five standard deviations of what comes out (docs/math.md, Rounding errors).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import torch

from helion_sinkhorn import reference
from helion_sinkhorn.scaling import segment_length
from helion_sinkhorn.workloads import make_cotangents, make_logits

UNIT = 2.0**-24
"""Unit roundoff of the computing type, float32."""
SAMPLES = 16
"""Runs of the model; a standard deviation out of 16 is known to a fifth."""
SIGMAS = 5.0
MODEL_ENTRIES = 1 << 22
"""Entries times iterations that the model runs at a time."""
UNDERFLOW = 2.0**-30
"""What entries of A below the normal range may add to a result of the log form (scaling.py)."""


def exact(
    x: torch.Tensor,
    dy: torch.Tensor,
    n_iters: int,
    *,
    eps: float = 1e-6,
    form: str = "deepseek",
    first: str = "rows",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(P, dX) in float64 on the CPU: the specification and autograd."""
    x64 = x.detach().to("cpu", torch.float64).requires_grad_()
    p = reference.sinkhorn(x64, n_iters, eps=eps, form=form, first=first)
    (dx,) = torch.autograd.grad(p, x64, dy.detach().to("cpu", torch.float64))
    return p.detach(), dx


class _Perturb(torch.autograd.Function):
    """x (1 + forward signs); on the way back g (1 + backward signs): one rounding in either direction."""

    @staticmethod
    def forward(ctx, x, forward, backward, generator):
        ctx.backward_size, ctx.generator = backward, generator
        return x * _Perturb.factor(x, forward, generator) if forward else x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * _Perturb.factor(g, ctx.backward_size, ctx.generator), None, None, None

    @staticmethod
    def factor(x, size, generator):
        signs = torch.randint(0, 2, x.shape, generator=generator, dtype=torch.int8)
        return signs.to(x.dtype).mul_(2.0 * size).add_(1.0 - size)


@dataclass(frozen=True)
class Rounding:
    """The rounding points of the kernels, each a bound in units of roundoff; unit=0 makes the model exact."""

    seed: int
    unit: float = UNIT
    generator: torch.Generator = field(default_factory=torch.Generator)

    ARGUMENT = 3.0
    """x - max, times log2(e), and that constant: relative to the argument of the exponential."""
    EXP = 4.0
    """ex2.approx: 2^-22."""
    RECIPROCAL = 4.0
    """Two units for a one-instruction reciprocal, and two products where it is shared by a pair."""

    def next_iteration(self) -> None:
        """Errors repeat from here: near a fixed point iterations round the same numbers the same way."""
        self.generator.manual_seed(self.seed)

    def __call__(self, x: torch.Tensor, forward: float = 1.0, backward: float | None = None) -> torch.Tensor:
        backward = forward if backward is None else backward
        return _Perturb.apply(x, forward * self.unit, backward * self.unit, self.generator)

    def adjoint(self, a: torch.Tensor, size: float = 1.0) -> torch.Tensor:
        """A where it is used or between uses: backwards an outer product or their running sum is rounded."""
        return self(a, 0.0, size)

    def running(self, terms: torch.Tensor, count: int) -> torch.Tensor:
        """Terms of a sum of `count`, one after another: count^3 / 3 squared units, shared among them."""
        return self(terms, 1.0 + count / math.sqrt(3.0))

    def sum(self, terms: torch.Tensor, axis: int) -> torch.Tensor:
        return self.running(terms, terms.size(axis)).sum(axis, keepdim=True)

    def dot(self, a: torch.Tensor, w: torch.Tensor, axis: int) -> torch.Tensor:
        """The sum of a w; an implementation may fuse its products."""
        return self.sum(a * w, axis)


def scaling_form(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, rounding: Rounding
) -> torch.Tensor:
    """P by the equations of docs/math.md as the kernels evaluate them, with `rounding` at each point."""
    if first == "cols":
        return scaling_form(x.mT, n_iters, eps, form, "rows", rounding).mT
    n, m = x.shape[-2:]
    rho = n / m
    rounding.next_iteration()
    deepseek = form == "deepseek" and eps > 0
    eps = eps if deepseek else 0.0
    z = rounding(x - x.detach().amax(-1, keepdim=True), rounding.ARGUMENT)
    if deepseek:
        e = rounding(z.exp(), rounding.EXP)
        z = rounding(e * rounding(1.0 / rounding.sum(e, -1), rounding.RECIPROCAL))
        a = rounding(z + eps)
        q = rounding(rounding.sum(a, -2) + eps)
    else:
        top = z.detach().amax(-2, keepdim=True)
        z = rounding(z - top, rounding.ARGUMENT)
        a = rounding(z.exp(), rounding.EXP)
        q = rounding(rounding(-top, rounding.ARGUMENT).exp(), rounding.EXP)
    p = torch.ones_like(a[..., :1])
    steps = n_iters - 1 if deepseek else n_iters
    segment = max(1, steps) if deepseek else segment_length(n, m)
    head = steps - max(0, steps - 1) // segment * segment
    u, v = 1.0 / p, rounding(1.0 / q, rounding.RECIPROCAL)
    for t in range(steps):
        rounding.next_iteration()
        if t >= head and (t - head) % segment == 0:
            z = rounding(z - rounding(p.log(), 2.0) - rounding(q.log(), 2.0), rounding.ARGUMENT)
            a = rounding(z.exp(), rounding.EXP)
            p, q, v = torch.ones_like(p), torch.ones_like(q), torch.ones_like(q)
        p = rounding(rho * (rounding.dot(rounding.adjoint(a), v, -1) + eps * p), 2.0)
        u = rounding(1.0 / p, rounding.RECIPROCAL)
        a = rounding.adjoint(a)
        q = rounding(rounding.dot(rounding.adjoint(a), u, -2) + (eps / rho) * q, 2.0)
        v = rounding(1.0 / q, rounding.RECIPROCAL)
        a = rounding.adjoint(a)
    return rounding(rounding(rounding.adjoint(a, 2.0) * u) * v)


def error_budget(
    x: torch.Tensor,
    dy: torch.Tensor,
    n_iters: int,
    *,
    eps: float = 1e-6,
    form: str = "deepseek",
    first: str = "rows",
    out_dtype: torch.dtype = torch.float32,
    unit: float = UNIT,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Largest |P - P64| and |dX - dX64| an implementation may show on these inputs, entry by entry.

    Five standard deviations of the results of `scaling_form` with random rounding errors, plus half a
    unit in the last place of the output type.  For P the deviation is relative, an entry's own but at
    least its matrix's mean weighted by P; for dX it is the largest of the matrix, since entries of a
    gradient cancel.

    Args:
        x, dy: logits and upstream gradients, (..., n, m).
        n_iters, eps, form, first: of `sinkhorn`.
        out_dtype: of P; dX has the dtype of x.
        unit: unit roundoff of the arithmetic.
        seed: of the random errors.
    """
    arguments = n_iters, eps, form, first
    x64, dy64 = (t.detach().to("cpu", torch.float64) for t in (x, dy))
    p, dx = exact(x64, dy64, n_iters, eps=eps, form=form, first=first)
    p_square, dx_square = torch.zeros_like(p), torch.zeros_like(dx)
    together = max(1, min(SAMPLES, MODEL_ENTRIES // max(1, x64.numel() * n_iters)))
    for begin in range(0, SAMPLES, together):
        count = min(together, SAMPLES - begin)
        leaf = x64.expand(count, *x64.shape).clone().requires_grad_()
        sample = scaling_form(leaf, *arguments, Rounding(seed + begin, unit))
        (slope,) = torch.autograd.grad(sample, leaf, dy64.expand_as(leaf))
        p_square += ((sample.detach() - p) ** 2).sum(0)
        dx_square += ((slope - dx) ** 2).sum(0)
    relative = torch.where(p > 0, p_square / p**2, 0.0) / SAMPLES
    matrix = (p * relative).sum((-2, -1), keepdim=True) / p.sum((-2, -1), keepdim=True)
    p_budget = SIGMAS * p * torch.maximum(relative, matrix).sqrt()
    dx_budget = SIGMAS * (dx_square / SAMPLES).amax((-2, -1), keepdim=True).sqrt().expand_as(dx)
    if form == "log" or eps == 0:
        scale = unit / UNIT * UNDERFLOW
        p_budget = p_budget + scale
        dx_budget = dx_budget + scale * dy64.abs().amax((-2, -1), keepdim=True)
    return p_budget + half_ulp(p, out_dtype), dx_budget + half_ulp(dx, x.dtype)


def half_ulp(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The error of rounding `exact` to `dtype` once; float32 is the arithmetic itself and adds nothing."""
    if dtype in (torch.float32, torch.float64):
        return torch.zeros_like(exact)
    kind = torch.finfo(dtype)
    return exact.abs() * (kind.eps / 2) + kind.smallest_normal * kind.eps / 2


def worst(actual: torch.Tensor, expected: torch.Tensor, budget: torch.Tensor) -> float:
    """The largest error in units of its budget: at most 1 passes.  NaN only where NaN is expected."""
    actual = actual.detach().to("cpu", torch.float64)
    if actual.shape != expected.shape:
        raise ValueError(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if actual.numel() == 0:
        return 0.0
    error = (actual - expected).abs()
    ratio = torch.where(error == 0, 0.0, error / budget)
    ratio = torch.where(expected.isnan() & actual.isnan(), 0.0, ratio)
    return ratio.nan_to_num(nan=math.inf).max().item()


@dataclass(frozen=True)
class Case:
    """One set of inputs with its truth and budget: what every implementation is judged on."""

    logits: str
    n: int
    m: int
    n_iters: int = 20
    form: str = "deepseek"
    first: str = "rows"
    batch: int = 5
    eps: float = 1e-6
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def arguments(self) -> tuple[int, float, str, str]:
        """(n_iters, eps, form, first), as the operators take them."""
        return self.n_iters, self.eps, self.form, self.first

    @property
    def options(self) -> dict[str, object]:
        """The same as keywords of `sinkhorn`."""
        return {"n_iters": self.n_iters, "eps": self.eps, "form": self.form, "first": self.first}

    def inputs(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
        """(logits, upstream gradient), each of `dtype`."""
        x = make_logits(self.logits, self.batch, self.n, self.m, seed=self.seed, dtype=self.dtype)
        return x.to(device), make_cotangents(x, seed=self.seed + 1).to(device)

    def judge(self, p: torch.Tensor | None = None, dx: torch.Tensor | None = None) -> dict[str, float]:
        """The worst error of each given result in units of its budget; 1 is the limit."""
        p64, dx64, p_budget, dx_budget = _truth(self)
        ratios = {}
        if p is not None:
            ratios["P"] = worst(p, p64, p_budget + half_ulp(p64, p.dtype))
        if dx is not None:
            ratios["dX"] = worst(dx, dx64, dx_budget)
        return ratios

    def budget_of_a_sum(self, of: str, axis: int) -> torch.Tensor:
        """The budget of sums of "P" or "dX" along an axis: those of their entries together."""
        return _truth(self)[{"P": 2, "dX": 3}[of]].sum(axis)


@functools.lru_cache(maxsize=256)
def _truth(case: Case) -> tuple[torch.Tensor, ...]:
    x, dy = case.inputs()
    return *exact(x, dy, **case.options), *error_budget(x, dy, **case.options)
