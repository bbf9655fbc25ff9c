"""Inputs of dot compress, its results with gradients, and their errors."""

from __future__ import annotations

import torch
from autograd_calls import randn

from helion_sinkhorn import dot_compress
from helion_sinkhorn.lab.dot_compress import budget as testing_dot_compress
from helion_sinkhorn.lab.rounding import worst


def inputs(batch, m, d, k, has_z=True, dtype=torch.float32, seed=0):
    """x, y, z or None, upstream gradient."""
    shapes = (batch, m, d), (batch, m, k), (batch, d, k), (batch, m, k)
    x, y, z, grad = (randn(*shape, seed=seed + i, dtype=dtype) for i, shape in enumerate(shapes))
    return x, y, z if has_z else None, grad


def results(x, y, z, grad, f=dot_compress, **options):
    """{"out", "dx", "dy" and with z "dz"}."""
    leaves = [t.detach().clone(memory_format=torch.preserve_format).requires_grad_() for t in (x, y)]
    leaves += [] if z is None else [z.detach().clone().requires_grad_()]
    out = f(*leaves, **options)
    gradients = torch.autograd.grad(out, leaves, grad)
    return dict(zip(("out", "dx", "dy", "dz"), (out.detach(), *gradients), strict=False))


def worst_errors(tensors, x, y, z, grad, parts=1):
    """The largest error of each result in units of its budget."""
    truth = testing_dot_compress.exact(x, y, z, grad, parts)
    return {name: worst(t, truth[name].value, truth[name].budget) for name, t in tensors.items()}
