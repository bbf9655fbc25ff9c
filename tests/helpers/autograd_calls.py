"""Helpers of several test files: seeded inputs, values with their gradients, equality of bits."""

from __future__ import annotations

import torch


def randn(*shape, seed=0, dtype=torch.float32, device="cpu", scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(device, dtype)


def value_and_gradient(f, x, upstream):
    return tuple(values_and_gradients(f, [x], [upstream]))


def values_and_gradients(function, tensors, upstream, **options) -> list[torch.Tensor]:
    """Results of function(*tensors), or the only one, and the gradients of the tensors.

    Upstream gradients are cast to the dtypes of the results; of a result without one they are None.
    """
    leaves = [t.detach().requires_grad_() for t in tensors]
    results = function(*leaves, **options)
    if isinstance(results, torch.Tensor):
        results = (results,)
    used = [(y, g.to(y.dtype)) for y, g in zip(results, upstream, strict=True) if g is not None]
    gradients = torch.autograd.grad([y for y, _ in used], leaves, [g for _, g in used])
    return [*(y.detach() for y in results), *gradients]


def assert_equal(actual, expected):
    for a, b in zip(actual, expected, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


class NoGradient(torch.autograd.Function):
    """A function whose backward returns no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return None


def dynamic_frames(f, calls):
    """How often a function of dynamic sizes is compiled for these calls, each with its eager result."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(f, dynamic=True, fullgraph=True, backend=counter)
    for arguments in calls:
        assert torch.equal(compiled(*arguments), f(*arguments))
    return counter.frame_count
