"""Calls of large matrices with all their results, by a module of the package: kernels or the CPU path."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from autograd_calls import randn

from helion_sinkhorn.ops.sinkhorn.large import eager
from helion_sinkhorn.ops.sinkhorn.large.sides import Matrices

Given = tuple[torch.Tensor | None, ...]
"""Logits, logarithms of marginals, and upstream gradients of P, f and g."""


def given(
    n: int,
    m: int,
    sides: bool,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
    x: torch.Tensor | None = None,
) -> Given:
    """Drawn, or of these logits; `sides`: whether there are marginals."""
    x = randn(batch, n, m, scale=2, dtype=dtype) if x is None else x
    r, c = (randn(batch, k, seed=k).log_softmax(-1) for k in (n, m)) if sides else (None, None)
    return x, r, c, randn(batch, n, m, seed=3, dtype=dtype), randn(batch, n, seed=4), randn(batch, m, seed=5)


def on(device: str, inputs: Given) -> Given:
    return tuple(None if t is None else t.to(device) for t in inputs)


def results(
    module: ModuleType, inputs: Given, n_iters: int, first: str, temperature: float = 1.0, **own: Any
) -> list[torch.Tensor]:
    """P, f, g and the gradients of logits and marginals, of the log form."""
    x, r, c, dy, df, dg = inputs
    matrices = Matrices(x, r, c, 0.0, first, temperature)
    made = module.forward(matrices, n_iters, True, x.dtype, **own)
    gradients = module.backward(dy, df, dg, matrices, *made[3:], **own)
    return [*made[:3], *(t for t in gradients if t.numel())]


def exact(inputs: Given, *call: Any, **own: Any) -> list[torch.Tensor]:
    """The same in float64."""
    return results(eager, tuple(None if t is None else t.double() for t in inputs), *call, **own)


def assert_near(tensors: list[torch.Tensor], true: list[torch.Tensor], tolerance: float = 4e-6) -> None:
    """Within what potentials of 10 to 20 round of an exponent, and a rounding of narrow results."""
    for a, b in zip(tensors, true, strict=True):
        rounding = tolerance if a.dtype == torch.float32 else torch.finfo(a.dtype).eps
        assert (a.cpu().double() - b).abs().max() <= rounding * b.abs().max().clamp(min=0.5)
