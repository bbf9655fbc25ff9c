"""hc_pre with a norm in vectorised PyTorch: what a CPU runs, and a GPU for float64.

The collapse is computed and rounded as in hc_pre; the backward computes it again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.ops.mhc.pre import eager as of_pre
from helion_sinkhorn.runtime.batched_products import fewest
from helion_sinkhorn.runtime.pieces import COMPUTING, pieces, sum_last
from helion_sinkhorn.runtime.wanted import Some, room_for


def factors(y: torch.Tensor, eps: float) -> torch.Tensor:
    """1 / sqrt(mean of the squares + eps) of each row, (T, 1)."""
    return 1 / (sum_last(y * y).unsqueeze(-1) / y.size(-1) + eps).sqrt()


def forward(x: torch.Tensor, pre: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """u; see api.hc_pre."""
    y = of_pre.forward(x, pre)
    wide, w = y.view(-1, y.size(-1)), weight.to(COMPUTING[x.dtype])
    # in place, since what is read of a piece is a copy
    for at in pieces(len(wide), x.size(-2) * x.size(-1)):
        rows = wide[at].to(w.dtype, copy=True)
        torch.mul(rows.mul_(factors(rows, eps)), w, out=wide[at])
    return y


def backward(
    du: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    of_streams: torch.dtype,
    wanted: Sequence[bool] = (True, True, True),
) -> tuple[Some, Some, Some]:
    """(dx in `of_streams`, dpre, dweight in the computing dtype), None for each that is not wanted."""
    n, c = x.shape[-2:]
    dtype = COMPUTING[x.dtype]
    dx = torch.empty(x.shape, dtype=of_streams, device=x.device) if wanted[0] else None
    (dpre,) = room_for((pre,), wanted[1:2])
    dweight = torch.zeros(c, dtype=dtype, device=x.device) if wanted[2] else None
    streams, weights, upstream = x.reshape(-1, n, c), pre.to(dtype).reshape(-1, n, 1), du.reshape(-1, c)
    w = weight.to(dtype)
    for at in pieces(len(streams), n * c, fewest(n * c, x.device)):
        own = streams[at]
        # the order of a sum over tokens follows from the layout
        g = upstream[at].to(dtype).contiguous()
        y = of_pre.forward(own, pre.reshape(-1, n)[at]).to(dtype)
        r = factors(y, eps)
        unit = y.mul_(r)
        if dweight is not None:
            dweight += (g * unit).sum(0)
        h = g * w
        along = sum_last(h * unit).unsqueeze(-1) / c
        dy = h.sub_(along * unit).mul_(r).unsqueeze(1)
        if dx is not None:
            torch.mul(dy, weights[at], out=dx.view(-1, n, c)[at])
        if dpre is not None:
            dpre.view(-1, n)[at] = sum_last(dy * own)
    return dx, dpre, dweight
