"""hc_pre in vectorised PyTorch: what a CPU runs, and a GPU for float64.

A sum over streams adds one after another, and one over columns adds halves: a token's bits do not depend on
those around it.  No copy of the streams in float32 is made but of a piece.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.pieces import computing, pieces, sum_last


def forward(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """y; see api.hc_pre."""
    n, c = x.shape[-2:]
    y = torch.empty((*x.shape[:-2], c), dtype=x.dtype, device=x.device)
    rows, streams = y.view(-1, c), x.reshape(-1, n, c)
    weights = pre.to(computing(x.dtype)).reshape(-1, n, 1)
    for at in pieces(len(streams), n * c):
        each, w = streams[at], weights[at]
        total = each[:, 0] * w[:, 0]
        for i in range(1, n):
            total += each[:, i] * w[:, i]
        rows[at] = total
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
