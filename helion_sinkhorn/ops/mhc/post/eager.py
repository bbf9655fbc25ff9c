"""hc_post in vectorised PyTorch: what a CPU runs, and a GPU for float64.

A token's bits do not depend on the tokens around it: streams are mixed by products of its own matrices, and
columns are added up in an order that only their number decides.  Tokens are computed in pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helion_sinkhorn.runtime.batched_products import fewest, products
from helion_sinkhorn.runtime.float32_products import float32_products
from helion_sinkhorn.runtime.pieces import COMPUTING, pieces, sum_last
from helion_sinkhorn.runtime.updates import Update
from helion_sinkhorn.runtime.wanted import room_for


@float32_products()
def forward(update: Update, comb_order):
    """The new streams; see api.hc_post."""
    f, x, post, comb, bias = update
    n, c = x.shape[-2:]
    dtype, least = COMPUTING[x.dtype], fewest(n * c, x.device)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    made, streams, rows = out.view(-1, n, c), x.reshape(-1, n, c), f.reshape(-1, 1, c)
    comb = comb if comb_order == "io" else comb.mT
    post, comb = post.to(dtype).reshape(-1, n, 1), comb.to(dtype).reshape(-1, n, n)
    for at in pieces(len(streams), n * c, least):
        given = rows[at].to(dtype) if bias is None else rows[at].to(dtype) + bias.to(dtype)
        mixed = products(comb[at], streams[at].to(dtype), least, turn_a=True)
        torch.addcmul(mixed, post[at], given, out=made[at])
    return out


@float32_products()
def backward(grad, update: Update, comb_order, wanted: Sequence[bool] = (True,) * 4):
    """(df, dx, dpost, dcomb), None for each that is not wanted."""
    f, x, post, comb, bias = update
    n, c = x.shape[-2:]
    dtype, least = COMPUTING[x.dtype], fewest(n * c, x.device)
    df, dx, dpost, dcomb = made = room_for((f, x, post, comb), wanted)
    if comb_order == "oi":
        comb = comb.mT
    post, comb = post.to(dtype).reshape(-1, 1, n), comb.to(dtype).reshape(-1, n, n)
    upstream, streams, rows = grad.reshape(-1, n, c), x.reshape(-1, n, c), f.reshape(-1, 1, c)
    for at in pieces(len(streams), n * c, least):
        g = upstream[at].to(dtype)
        if df is not None:
            df.view(-1, 1, c)[at] = products(post[at], g, least)
        if dx is not None:
            dx.view(-1, n, c)[at] = products(comb[at], g, least)
        if dpost is not None:
            given = rows[at].to(dtype) if bias is None else rows[at].to(dtype) + bias.to(dtype)
            dpost.view(-1, n)[at] = sum_last(g * given)
        if dcomb is not None:
            pairs = products(streams[at].to(dtype), g, least, turn_b=True)
            dcomb.view(-1, n, n)[at] = pairs if comb_order == "io" else pairs.mT
    return made
