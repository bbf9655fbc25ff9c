"""The Helion kernel bodies of hc_pre with a norm: the normalised state of a token's streams, and gradients.

A program holds all columns of a token in registers, so that the streams are read once.  One of the forward
has one token; one of the backward takes a share of the tokens one after another, and adds up the gradient of
the weight over them.
"""

from __future__ import annotations

import helion.language as hl
import torch

from helion_sinkhorn.ops.mhc.pre.quantized.kernels import round_tile, wait
from helion_sinkhorn.runtime.device_math import multiply_add


def streams_of(x, t, n):
    """The streams of a token in float32, (1, C) each."""
    # hl.load: inside a helper Helion takes indexing for an operation on the host
    return [hl.load(x, [t, i, slice(None)]).to(torch.float32) for i in range(n)]


def collapsed(streams, pre, t, dtype, how):
    """sum_i pre_i x_i, rounded as in hc_pre, in float32; the stream itself if there are no weights."""
    if pre is None:
        return streams[0]
    total = streams[0] * 0.0
    for i, stream in enumerate(streams):
        weight = hl.load(pre, [t, i]).to(torch.float32).unsqueeze(1)
        total = multiply_add(weight, stream, total, how)
    return total.to(dtype).to(torch.float32)


def factor_of(y, eps, columns):
    """1 / sqrt(mean of the squares + eps) of a row, (1,)."""
    return 1.0 / torch.sqrt((y * y).sum(1) / columns + eps)


def hc_pre_normed_forward(
    x: torch.Tensor,
    pre: torch.Tensor | None,
    weight: torch.Tensor,
    u: torch.Tensor,
    parts: torch.Tensor | None,
    values: torch.Tensor | None,
    scales: torch.Tensor | None,
    neighbours: int,
    facts: hl.constexpr,
):
    """Write u (T, C) for x (T, n, C), pre (T, n) and weight (C,); without pre x has one stream.

    With values (T K, G) and scales write them too, as quantize_groups does for parts (T K, G), a view of u.
    """
    n, columns, eps, how, form = facts
    tokens = x.size(0)
    hl.specialize((x.size(2), x.stride(), u.size(1), u.stride()))
    if pre is not None:
        # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
        _pre = hl.specialize(pre.stride())
    if values is not None:
        _parts = hl.specialize((parts.size(1), parts.stride(), values.stride()))
    for t in hl.tile(tokens, block_size=1):
        y = collapsed(streams_of(x, t, n), pre, t, x.dtype, how)
        w = weight[:].to(torch.float32).unsqueeze(0)
        u[t, :] = (y * factor_of(y, eps, columns).unsqueeze(1) * w).to(u.dtype)
        if values is not None:
            # Helion takes no loop in a helper
            step, floor, of_groups = form
            wait(how)
            for tile in hl.tile(t.begin * of_groups[0], t.end * of_groups[0], block_size=step):
                round_tile(parts, values, scales, tile, floor, neighbours, of_groups)


def hc_pre_normed_backward(
    du: torch.Tensor,
    x: torch.Tensor,
    pre: torch.Tensor,
    weight: torch.Tensor,
    dx: torch.Tensor | None,
    dy: torch.Tensor | None,
    dpre: torch.Tensor | None,
    factors: torch.Tensor | None,
    dweight: torch.Tensor | None,
    shares: int,
    facts: hl.constexpr,
):
    """Write the gradients of x (T, n, C), y (T, C), pre (T, n) and weight, (shares, C), from du (T, C).

    Each of them may be None.  With v = r y the gradient of y is r (h - v mean(h v)), h = weight du.  factors
    (T, 2) are r and mean(h v), from which another kernel computes the gradient of y again.
    """
    n, columns, eps, how = facts
    tokens = x.size(0)
    share = (tokens + shares - 1) // shares
    hl.specialize((x.size(2), x.stride(), du.stride(), pre.stride()))
    # Helion takes a loop that names a tensor outside its store for one that reads it, and then pipelines no
    # loads in it
    of_y, of_weight = dy is not None, dweight is not None
    # assigned to a name: Helion drops a bare call, which would leave the block of the `if` empty
    if dx is not None:
        _dx = hl.specialize((dx.size(2), dx.stride()))
    if of_y:
        _dy = hl.specialize((dy.size(1), dy.stride()))
    if dpre is not None:
        _dpre = hl.specialize(dpre.stride())
    if factors is not None:
        _factors = hl.specialize(factors.stride())
    if of_weight:
        _dweight = hl.specialize((dweight.size(1), dweight.stride()))
    for s in hl.tile(shares, block_size=1):
        first = s.begin * share
        total = weight[:] * 0.0
        for t in hl.tile(first, min(first + share, tokens), block_size=1):
            streams = streams_of(x, t, n)
            g = du[t, :].to(torch.float32)
            y = collapsed(streams, pre, t, x.dtype, how)
            root = factor_of(y, eps, columns)
            r = root.unsqueeze(1)
            v = y * r
            if of_weight:
                total = total + (g * v).sum(0)
            # read for each token, since keeping it would take a register for each entry of a thread
            h = g * weight[:].unsqueeze(0)
            along = (h * v).sum(1) / columns
            through = (h - v * along.unsqueeze(1)) * r
            if factors is not None:
                factors[t, 0] = root
                factors[t, 1] = along
            if of_y:
                dy[t, :] = through.to(dy.dtype)
            store_of_streams(through, streams, pre, dx, dpre, t, n)
        if of_weight:
            dweight[s, :] = total.unsqueeze(0)


def store_of_streams(through, streams, pre, dx, dpre, t, n):
    """Store dx and dpre of a token; either may be None."""
    for i in range(n):
        if dx is not None:
            weight = hl.load(pre, [t, i]).to(torch.float32).unsqueeze(1)
            hl.store(dx, [t, i, slice(None)], (weight * through).to(dx.dtype))
        if dpre is not None:
            hl.store(dpre, [t, i], (streams[i] * through).sum(1).to(dpre.dtype))
