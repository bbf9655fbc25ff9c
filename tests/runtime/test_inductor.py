"""One graph of every operator, forward and backward, compiled by inductor."""

from __future__ import annotations

import torch
from autograd_calls import randn

from helion_sinkhorn import dot_compress, hc_mixes, hc_post, hc_pre, hc_split_sinkhorn, sinkhorn

TOKENS, STREAMS, ENTRIES = 6, 4, 8


def site(x, fn, scale, base):
    """A site of mHC whose sublayer is a sine, and a normalised product of its streams with comb."""
    mixes = hc_mixes(x * 2, fn)
    pre, post, comb = hc_split_sinkhorn(mixes, scale, base, STREAMS, 5)
    out = hc_post(hc_pre(x, pre).sin(), x, post, comb)
    return out, sinkhorn(dot_compress(out, comb).mT, 7, form="log", first="cols").square()


def test_compiled_by_inductor():
    rows = STREAMS * (STREAMS + 2)
    shapes = (TOKENS, STREAMS, ENTRIES), (rows, STREAMS * ENTRIES), (3,), (rows,)
    given = [randn(*shape, seed=k, dtype=torch.float64) for k, shape in enumerate(shapes)]
    upstream = [randn(TOKENS, STREAMS, k, seed=k, dtype=torch.float64) for k in (ENTRIES, STREAMS)]
    torch._dynamo.reset()
    both = []
    for f in (site, torch.compile(site, fullgraph=True)):
        leaves = [t.clone().requires_grad_() for t in given]
        results = f(*leaves)
        both.append([*(t.detach() for t in results), *torch.autograd.grad(results, leaves, upstream)])
    for plain, compiled in zip(*both, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-9, atol=1e-9)
