"""hc_post in vectorised PyTorch: what a CPU runs, and a GPU for float64.

Sums are of products, in an order that sizes of a token alone decide: its bits do not depend on those around
it.  Products are made of a piece of the tokens at a time.
"""

from __future__ import annotations

import torch

from helion_sinkhorn.runtime.pieces import computing, pieces, sum_last, sum_of_products


def _weights(post, comb, comb_order, dtype):
    """(T, n, 1) and (T, n, n, 1) by input and output stream, in the computing dtype."""
    n = post.size(-1)
    comb = comb if comb_order == "io" else comb.mT
    return post.to(dtype).reshape(-1, n, 1), comb.to(dtype).reshape(-1, n, n, 1)


def forward(f, x, post, comb, bias, comb_order):
    """The new streams; see api.hc_post."""
    n, c = x.shape[-2:]
    dtype = computing(x.dtype)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    post, comb = _weights(post, comb, comb_order, dtype)
    made, streams, rows = out.view(-1, n, c), x.reshape(-1, n, c), f.reshape(-1, c)
    for at in pieces(len(streams), n * n * c):
        given = rows[at].to(dtype) if bias is None else rows[at].to(dtype) + bias.to(dtype)
        made[at] = sum_of_products(comb[at], streams[at].unsqueeze(2), 1).add_(post[at] * given.unsqueeze(1))
    return out


def backward(grad, f, x, post, comb, bias, comb_order):
    """(df, dx, dpost, dcomb)."""
    n, c = x.shape[-2:]
    dtype = computing(x.dtype)
    df, dx, dpost, dcomb = (torch.empty(t.shape, dtype=t.dtype, device=t.device) for t in (f, x, post, comb))
    of_rows, of_streams, of_post = df.view(-1, c), dx.view(-1, n, c), dpost.view(-1, n)
    of_comb = dcomb.view(-1, n, n) if comb_order == "io" else dcomb.view(-1, n, n).mT
    post, comb = _weights(post, comb, comb_order, dtype)
    upstream, streams, rows = grad.reshape(-1, n, c), x.reshape(-1, n, c), f.reshape(-1, c)
    for at in pieces(len(streams), n * n * c):
        g = upstream[at].to(dtype)
        given = rows[at].to(dtype) if bias is None else rows[at].to(dtype) + bias.to(dtype)
        of_rows[at] = sum_of_products(post[at], g, 1)
        of_streams[at] = sum_of_products(comb[at], g.unsqueeze(1), 2)
        of_post[at] = sum_last(g * given.unsqueeze(1))
        of_comb[at] = sum_last(streams[at].to(dtype).unsqueeze(2) * g.unsqueeze(1))
    return df, dx, dpost, dcomb
