"""Helpers of several test files: seeded inputs, a value with its gradient, equality of bits."""

from __future__ import annotations

import torch


def randn(*shape, seed=0, dtype=torch.float32, device="cpu", scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * scale).to(device, dtype)


def value_and_gradient(f, x, upstream):
    leaf = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = f(leaf)
    (dx,) = torch.autograd.grad(y, leaf, upstream)
    return y.detach(), dx


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
