"""hc_pre in vectorised PyTorch: what a CPU runs, and a GPU for float64.

A token's bits do not depend on the tokens around it: streams are added up by products of its own matrices,
and columns in an order that only their number decides.  Tokens are computed in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.runtime.batched_products import fewest, products
from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import COMPUTING, pieces, sum_last
from helion_sinkhorn.runtime.wanted import room_for


@float32_products()
def forward(x: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """y; see api.hc_pre."""
    n, c = x.shape[-2:]
    dtype, least = COMPUTING[x.dtype], fewest(n * c, x.device)
    y = torch.empty((*x.shape[:-2], c), dtype=x.dtype, device=x.device)
    rows, streams, weights = y.view(-1, 1, c), x.reshape(-1, n, c), pre.to(dtype).reshape(-1, 1, n)
    for at in pieces(len(streams), n * c, least):
        rows[at] = products(weights[at], streams[at].to(dtype), least)
    return y


def backward(
    dy: torch.Tensor, x: torch.Tensor, pre: torch.Tensor, wanted: Sequence[bool] = (True, True)
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """(dx, dpre), None for each that is not wanted."""
    n, c = x.shape[-2:]
    dtype = COMPUTING[x.dtype]
    dx, dpre = room_for((x, pre), wanted)
    streams, weights, upstream = x.reshape(-1, n, c), pre.to(dtype).reshape(-1, n, 1), dy.reshape(-1, c)
    for at in pieces(len(streams), n * c):
        g = upstream[at].to(dtype).unsqueeze(1)
        if dx is not None:
            torch.mul(g, weights[at], out=dx.view(-1, n, c)[at])
        if dpre is not None:
            dpre.view(-1, n)[at] = sum_last(g * streams[at])
    return dx, dpre
