"""Sinkhorn and its exact gradient step by step in PyTorch, for correct implementations and for wrong ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from ci.gate.arithmetic import PLAIN, Arithmetic
from ci.gate.wrong import Results, Run, by_eager
from helion_sinkhorn import reference
from helion_sinkhorn.lab.sinkhorn import budget
from helion_sinkhorn.lab.sinkhorn.evidence import RESULTS, run
from helion_sinkhorn.lab.sinkhorn.workloads import SinkhornWorkload

Function = Callable[[SinkhornWorkload, torch.Tensor], torch.Tensor]
"""(workload, logits) -> P."""


def named(w: SinkhornWorkload, *results: torch.Tensor) -> Results:
    """P and dX, each rounded once to the workload's dtype."""
    return {name: t.detach().to(w.dtype) for name, t in zip(RESULTS, results, strict=True)}


def in_place(
    x: torch.Tensor,
    workload: SinkhornWorkload,
    arithmetic: Arithmetic,
    eps: float | None = None,
    missing: int = 0,
) -> torch.Tensor:
    """The matrix itself divided by its sums: no scaling vectors.

    Args:
        eps: of the denominators, whatever the form.
        missing: half-steps left out at the end.
    """
    if workload.first == "cols":
        return in_place(x.mT, replace(workload, first="rows"), arithmetic, eps, missing).mT
    deepseek = workload.form == "deepseek"
    own = workload.eps if deepseek else 0.0
    eps = own if eps is None else eps
    p = arithmetic((x - x.detach().amax(-1, keepdim=True)).exp(), arithmetic.EXP)
    if deepseek:
        p = arithmetic.divide(p, arithmetic.sum(p, -1)) + own
    axes = [-1, -2] * workload.n_iters
    for axis in axes[1 if deepseek else 0 : len(axes) - missing]:
        p = arithmetic.divide(p, arithmetic.sum(p, axis) + eps)
    return p


def differentiated(function: Function, dtype: torch.dtype = torch.float32) -> Run:
    """P and dX of a function of the logits, computed in no narrower dtype than this."""

    def by_autograd(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> Results:
        compute = torch.promote_types(w.dtype, dtype)
        leaf = x.to(compute, copy=True).requires_grad_()
        p = function(replace(w, dtype=compute), leaf)
        return named(w, p, *torch.autograd.grad(p, leaf, dy.to(compute)))

    return by_autograd


def in_float64(function: Function) -> Run:
    """Rounded once from float64: a fault and no rounding error."""
    return differentiated(function, torch.float64)


def dividing(arithmetic: Arithmetic = PLAIN, **change) -> Run:
    return differentiated(lambda w, t: in_place(t, w, arithmetic, **change))


def scaling(
    arithmetic: Arithmetic = PLAIN,
    kind: type[budget.Iterations] = budget.Iterations,
    dtype: torch.dtype = torch.float32,
) -> Run:
    """The scaling form and its adjoint by projections, as the kernels have them."""

    def by_scaling(w, x, dy):
        compute = torch.promote_types(w.dtype, dtype)
        return named(w, *budget.scaling_form(x.to(compute), dy.to(compute), *w.arguments, arithmetic, kind))

    return by_scaling


def recurrence(w: SinkhornWorkload, t: torch.Tensor) -> torch.Tensor:
    """The scaling form for autograd: cotangents of u and v handed from iteration to iteration, none looked at
    again."""
    return budget.scaling_form(t, None, *w.arguments, PLAIN)[0]


exact = functools.lru_cache(maxsize=4)(budget.exact)
"""Many faults begin with it."""


def specification(**change) -> Run:
    """The equations in float64 with other arguments, rounded once; a function takes the workload."""

    def specified(w, x, dy):
        other = {name: value(w) if callable(value) else value for name, value in change.items()}
        return named(w, *exact(x, dy, **{**w.options, **other}))

    return specified


pytorch = functools.lru_cache(maxsize=2)(differentiated(lambda w, t: reference.sinkhorn(t, **w.options)))
"""The specification as PyTorch evaluates it in float32, and autograd: what kernels are compared with."""


def compiled(w: SinkhornWorkload, x: torch.Tensor, dy: torch.Tensor) -> Results:
    """torch.compile of the specification, in float32 and rounded once."""
    leaf = x.requires_grad_()
    function = torch.compile(lambda t: reference.sinkhorn(t.float(), **w.options).to(w.dtype), dynamic=False)
    p = function(leaf)
    (dx,) = torch.autograd.grad(p, leaf, dy)
    return {"P": p, "dX": dx}


right = by_eager(run, RESULTS)
