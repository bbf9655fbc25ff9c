"""Random tensors with the same bits on every machine."""

from __future__ import annotations

import numpy as np
import torch

SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Dtypes in the names of workloads."""


class There:
    """Draws on a device, where a CPU would take minutes: other numbers of the same laws; "meta" has none."""

    def __init__(self, device: torch.device | str) -> None:
        self.generator = None if str(device) == "meta" else torch.Generator(device).manual_seed(0)
        self.options = {"device": device, "generator": self.generator}


Draws = np.random.Generator | There


def draws(seed: int, device: torch.device | str, there: bool = False) -> Draws:
    """NumPy's numbers by a seed, the same on every machine; the device's own if `there`; "meta" has none."""
    return There(device) if there or str(device) == "meta" else np.random.default_rng(seed)


def normal(generator: Draws, *shape: int) -> torch.Tensor:
    """Standard normal numbers: NumPy's come from integers and tables, torch's from the host's vector log."""
    if isinstance(generator, There):
        return torch.randn(shape, **generator.options)
    return torch.from_numpy(generator.standard_normal(shape).astype(np.float32))


def uniform(generator: Draws, *shape: int) -> torch.Tensor:
    """Numbers between 0 and 1."""
    if isinstance(generator, There):
        return torch.rand(shape, **generator.options)
    return torch.from_numpy(generator.random(shape).astype(np.float32))


def magnitudes(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    """Standard normal numbers times powers of two from 2^-12 to 2^12."""
    powers = torch.from_numpy(generator.integers(-12, 13, shape))
    return normal(generator, *shape).ldexp(powers)


def unused_zero(upstream: dict[str, torch.Tensor | None], unused: str) -> dict[str, torch.Tensor | None]:
    """Upstream gradients by name; 0 for results that nothing used, which are named with spaces between."""
    return upstream | {name: torch.zeros_like(t) for name, t in upstream.items() if name in unused.split()}


def make_cotangents(x: torch.Tensor, *, seed: int = 1) -> torch.Tensor:
    """Random upstream gradients of the shape of x: one that is constant along a line would hide errors."""
    return normal(np.random.default_rng(seed), *x.shape).to(x.dtype)


def noise(device: str, dtype: str, *shapes: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    """Standard normal tensors, the same for the same shapes."""
    generator = There(device)
    return tuple(normal(generator, *shape).to(getattr(torch, dtype)) for shape in shapes)
