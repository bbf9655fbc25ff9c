"""Steep logits: entries of A below the range of a float end as large as any."""

from __future__ import annotations

import torch
from autograd_calls import randn, value_and_gradient

from helion_sinkhorn import reference


def transport(n: int, cost: float = 1e-3) -> torch.Tensor:
    """64 optimal transports between n points of a line and the squares of n others: logits down to -1000."""
    draws = torch.Generator().manual_seed(0)
    x, y = torch.rand(64, n, 1, generator=draws), torch.rand(64, 1, n, generator=draws) ** 2
    return -((x - y) ** 2) / cost


def slopes(n: int) -> torch.Tensor:
    """Logits c i j for 64 slopes c up to 60."""
    i = torch.arange(float(n))
    return torch.linspace(1, 60, 64)[:, None, None] * i[:, None] * i


STEEP = {"transport": transport, "slopes": slopes}
STEEP_CALLS = [
    ("slopes", 4, 60), ("slopes", 8, 20), ("slopes", 8, 30), ("slopes", 16, 20), ("transport", 16, 50),
    ("slopes", 33, 20),
]  # fmt: skip
"""Kinds, sizes and iterations that are longer than `segment_length`."""


def check_gradient(gradient, kind: str, n: int, n_iters: int, device: str = "cpu") -> None:
    """gradient(dy, x) of the log form, against float64; float32 autograd of the definition errs as much."""
    x = STEEP[kind](n)
    dy = randn(*x.shape, seed=1)

    def by_autograd(dtype):
        dx = value_and_gradient(lambda t: reference.sinkhorn(t, n_iters, form="log"), x.to(dtype), dy)[1]
        return dx.double()

    true, plain = by_autograd(torch.float64), by_autograd(torch.float32)
    error = (gradient(dy.to(device), x.to(device)).cpu().double() - true).abs().amax((1, 2))
    of_autograd = (plain - true).abs().amax()
    assert true.abs().amax() > 0.1
    assert (error <= 2 * of_autograd).all(), (error.amax(), of_autograd)
