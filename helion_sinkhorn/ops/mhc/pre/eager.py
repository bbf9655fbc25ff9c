"""hc_pre in vectorised PyTorch: what a CPU runs, and a GPU for float64.

Sums are of products, in an order that sizes of a token alone decide: its bits do not depend on those around
it.  Products are made of a piece of the tokens at a time.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.pieces import computing, pieces, sum_last, sum_of_products


def forward(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """y; see api.hc_pre."""
    n, c = x.shape[-2:]
    y = torch.empty((*x.shape[:-2], c), dtype=x.dtype, device=x.device)
    rows, streams = y.view(-1, c), x.reshape(-1, n, c)
    weights = pre.to(computing(x.dtype)).reshape(-1, n, 1)
    for at in pieces(len(streams), n * c):
        rows[at] = sum_of_products(weights[at], streams[at], 1)
    return y


def backward(dy: torch.Tensor, x: torch.Tensor, pre: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(dx, dpre)."""
    n, c = x.shape[-2:]
    dtype = computing(x.dtype)
    dx, dpre = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (x, pre))
    streams, weights = x.reshape(-1, n, c), pre.to(dtype).reshape(-1, n, 1)
    of_streams, of_weights, upstream = dx.view(-1, n, c), dpre.view(-1, n), dy.reshape(-1, c)
    for at in pieces(len(streams), n * c):
        g = upstream[at].to(dtype).unsqueeze(1)
        of_streams[at] = g * weights[at]
        of_weights[at] = sum_last(g * streams[at])
    return dx, dpre
