"""The exact result and the error budget that tests, tuner and accuracy gate share.

The budget is no round number: `error_budget` runs the scaling form in float64 with every
rounding of the kernels replaced by a random relative error of the size of its bound, and takes
five standard deviations of what comes out (docs/dev/math.md, Rounding errors).

The limit of parity must not come from the tested algorithm.  Two things are independent of every algorithm:
the error of PyTorch's autograd of the definition in float32 on the same inputs, and the effect of one
rounding of each logit and of each line sum, which no float32 evaluation can avoid.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from helion_sinkhorn.lab.rounding import SAMPLES, SIGMAS, UNIT, Rounding, half_ulp
from helion_sinkhorn.lab.truth import Peer, largest_error
from helion_sinkhorn.ops.sinkhorn import reference
from helion_sinkhorn.ops.sinkhorn.scaling import segment_length

SMALLEST_NORMAL = 2.0**-126
"""The smallest normal float32."""
MODEL_ENTRIES = 1 << 22
"""Entries times iterations that the model runs at a time."""
LARGEST_START = 40.0
"""Cap on log q_0.  The largest entry of a row is 1 when iterations begin, so e^-40 does not change its sum
in float64 either.  Without the cap q_0 overflows where a column is 710 below its rows."""
UNDERFLOW = 2.0**-30
"""The most that entries of A below the normal range may add to a result of the log form (scaling.py)."""
DRAWS = 4
"""A floor is the largest of so many draws of rounding errors."""
LAST_PLACES = 8 * UNIT
"""Four units in the last place of the largest entry are below every floor."""
VANISHING = 2.0**-20
"""If a gradient is smaller than this times the upstream gradient, errors are relative to the latter."""


def exact(
    x: torch.Tensor,
    dy: torch.Tensor,
    n_iters: int,
    *,
    eps: float = 1e-6,
    form: str = "deepseek",
    first: str = "rows",
) -> tuple[torch.Tensor, torch.Tensor]:
    """(P, dX) in float64: the specification and autograd."""
    x64 = x.detach().double().requires_grad_()
    p = reference.sinkhorn(x64, n_iters, eps=eps, form=form, first=first)
    (dx,) = torch.autograd.grad(p, x64, dy.detach().double())
    return p.detach(), dx


@dataclass
class Iterations:
    """The scaling form (docs/dev/math.md) with `rounding` wherever the kernels round; first="rows"."""

    eps: float
    rho: float
    rounding: Rounding
    z: torch.Tensor
    """The softmax (deepseek) or the balanced logits."""
    a: torch.Tensor
    p: torch.Tensor
    q: torch.Tensor
    history: list[tuple[torch.Tensor, ...]] = field(default_factory=list)
    """(A, v before, u, v) of each iteration."""

    @classmethod
    def started(cls, x: torch.Tensor, eps: float, deepseek: bool, rounding: Rounding) -> Iterations:
        rounding.next_iteration()
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
            start = (-top).clamp(max=LARGEST_START)
            q = rounding(rounding(start, rounding.ARGUMENT).exp(), rounding.EXP)
        return cls(eps, x.size(-2) / x.size(-1), rounding, z, a, torch.ones_like(a[..., :1]), q)

    def restart(self) -> None:
        """Absorb u and v into the logits."""
        r = self.rounding
        self.z = r(self.z - r(self.p.log(), 2.0) - r(self.q.log(), 2.0), r.ARGUMENT)
        self.a = r(self.z.exp(), r.EXP)
        self.p, self.q = torch.ones_like(self.p), torch.ones_like(self.q)

    def run(self, steps: int, segment: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The last (u, v) of `steps` iterations with a restart before each `segment` but the first."""
        r = self.rounding
        head = steps - max(0, steps - 1) // segment * segment
        u, v = 1.0 / self.p, r(1.0 / self.q, r.RECIPROCAL)
        for t in range(steps):
            r.next_iteration()
            if t >= head and (t - head) % segment == 0:
                self.restart()
                v = torch.ones_like(self.q)
            before = v
            self.p = r(self.rho * (r.dot(self.a, v, -1) + self.eps * self.p), 2.0)
            u = r(1.0 / self.p, r.RECIPROCAL)
            self.q = r(r.dot(self.a, u, -2) + (self.eps / self.rho) * self.q, 2.0)
            v = r(1.0 / self.q, r.RECIPROCAL)
            self.history.append((self.a, before, u, v))
        return u, v


def scaling_form(
    x: torch.Tensor,
    dy: torch.Tensor | None,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
    rounding: Rounding,
    kind: type[Iterations] = Iterations,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(P, dX) by docs/dev/math.md, the adjoint by projections, with `rounding` at each point.

    Without dy there is no dX.
    """
    if first == "cols":
        p, dx = scaling_form(x.mT, None if dy is None else dy.mT, n_iters, eps, form, "rows", rounding, kind)
        return p.mT, None if dx is None else dx.mT
    deepseek = form == "deepseek" and eps > 0
    steps = n_iters - 1 if deepseek else n_iters
    segment = max(1, steps) if deepseek else segment_length(*x.shape[-2:])
    r = rounding
    state = kind.started(x, eps if deepseek else 0.0, deepseek, r)
    z, a_0, v_0 = state.z, state.a, r(1.0 / state.q, r.RECIPROCAL)
    u, v = state.run(steps, segment)
    p = r(r(state.a * u) * v)
    if dy is None:
        return p, None
    a, da = state.a, r(r(dy * u) * v)
    for a_t, before, u, v in reversed(state.history):
        if a_t is not a:
            a, da = a_t, r(r(da * u) * v)
        da = r(da - r(u * r(v * r.dot(a, da, -2))))
        da = r(da - r(r(u * (state.rho * r.dot(a, da, -1))) * before))
    if not deepseek:
        return p, r(a * da)
    da = r(da - r(v_0 * r.dot(a_0, da, -2)))
    dz = r(z * da)
    return p, r(dz - r(z * r.sum(dz, -1)))


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
) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest |P - P64| and |dX - dX64| that an implementation may have, entry by entry.

    Five standard deviations of the results of `scaling_form` with random rounding errors, plus half a
    unit in the last place of the output type.  For P the deviation is relative, an entry's own but at
    least its matrix's root mean square weighted by P; for dX it is the largest of the matrix, since entries
    of a gradient cancel.

    Args:
        x, dy: logits and upstream gradients, (..., n, m).
        n_iters, eps, form, first: of `sinkhorn`.
        out_dtype: of P; dX has the dtype of x.
        unit: unit roundoff of the arithmetic.
    """
    x64, dy64 = x.detach().double(), dy.detach().double()
    p, dx = exact(x64, dy64, n_iters, eps=eps, form=form, first=first)
    p_square, dx_square = torch.zeros_like(p), torch.zeros_like(dx)
    together = max(1, min(SAMPLES, MODEL_ENTRIES // max(1, x64.numel() * n_iters)))
    for begin in range(0, SAMPLES, together):
        count = min(together, SAMPLES - begin)
        several = x64.expand(count, *x64.shape), dy64.expand(count, *dy64.shape)
        sample, slope = scaling_form(*several, n_iters, eps, form, first, Rounding.on(x.device, begin, unit))
        p_square += ((sample - p) ** 2).sum(0)
        dx_square += ((slope - dx) ** 2).sum(0)
    relative = torch.where(p > 0, p_square / p**2, 0.0) / SAMPLES
    matrix = (p * relative).sum((-2, -1), keepdim=True) / p.sum((-2, -1), keepdim=True)
    p_budget = SIGMAS * p * torch.maximum(relative, matrix).sqrt()
    dx_budget = SIGMAS * (dx_square / SAMPLES).amax((-2, -1), keepdim=True).sqrt().expand_as(dx)
    if form == "log" or eps == 0:
        scale = unit / UNIT * UNDERFLOW
        p_budget = p_budget + scale
        dx_budget = dx_budget + scale * dy64.abs().amax((-2, -1), keepdim=True)
    # below the normal range of float32 a gradient has no digits: that of a single row is zero and ends there
    below = unit / UNIT * SMALLEST_NORMAL * dy64.abs().amax((-2, -1), keepdim=True)
    return p_budget + half_ulp(p, out_dtype), dx_budget + below + half_ulp(dx, x.dtype)


def rounded_definition(
    x: torch.Tensor, n_iters: int, eps: float, form: str, first: str, generator: torch.Generator
) -> torch.Tensor:
    """P by the definition in the dtype of x, with one rounding of each logit and of each line sum.

    Each rounding is an error of one unit of float32, up or down at random, and a line's is the same in all
    iterations: near a fixed point the same numbers are rounded again and again.
    """

    def rounding(shape: torch.Size) -> torch.Tensor:
        return UNIT * (2.0 * torch.randint(0, 2, shape, generator=generator, dtype=x.dtype) - 1.0)

    lead, trail = (-1, -2) if first == "rows" else (-2, -1)
    top = x.detach().amax(lead, keepdim=True)
    x = top + (x - top) * (1.0 + rounding(x.shape))
    errors = {axis: rounding(x.sum(axis, keepdim=True).shape) for axis in (lead, trail)}
    axes = [lead, trail] * n_iters
    if form == "log" or eps == 0:
        for axis in axes:
            x = x - (x.logsumexp(axis, keepdim=True) + errors[axis])
        return x.exp()
    p = x.softmax(lead) / (1.0 + errors[lead]) + eps
    for axis in axes[1:]:
        p = p / ((p.sum(axis, keepdim=True) + eps) * (1.0 + errors[axis]))
    return p


def gradient(function, x: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """The derivative of <dy, function(x)> with respect to x, in the dtype of x."""
    leaf = x.detach().clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf, dy.to(x.dtype))[0]


def peer_of_gradient(
    x: torch.Tensor,
    dy: torch.Tensor,
    exact: torch.Tensor,
    scale: torch.Tensor,
    n_iters: int,
    eps: float,
    form: str,
    first: str,
) -> Peer:
    """The peer of dX, whose exact value is given in float64: PyTorch's rounded once to the dtype of x."""
    arguments = n_iters, eps, form, first
    scale = scale + VANISHING * dy.double().abs().amax((-2, -1), keepdim=True)
    floor = LAST_PLACES + (half_ulp(exact, x.dtype) / scale).amax((-2, -1))
    generator = torch.Generator().manual_seed(0)
    for _ in range(DRAWS):
        moved = gradient(lambda t: rounded_definition(t, *arguments, generator), x.double(), dy)
        floor = torch.maximum(floor, largest_error(moved, exact, scale))
    dx = gradient(lambda t: reference.sinkhorn(t, n_iters, eps=eps, form=form, first=first), x.float(), dy)
    return Peer(scale, torch.maximum(largest_error(dx.to(x.dtype), exact, scale), floor), floor)
