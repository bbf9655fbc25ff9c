"""Inputs of hc_boundary, and its results with gradients, by it and by the specifications of its parts."""

from __future__ import annotations

import torch
from autograd_calls import randn

from helion_sinkhorn import hc_boundary, reference

NAMES = (
    "y", "pre", "post", "comb", "streams", "df", "dx", "dpost", "dcomb", "dfn", "dscale", "dbase", "dbias",
    "dp",
)  # fmt: skip


def boundary_inputs(*lead, n=2, c=3, dtype=torch.float32, seed=0):
    """(f, x, post, comb, fn, scale, base, bias, pre_next), and upstream gradients in the order of NAMES."""
    m = n * n + 2 * n
    given = (
        randn(*lead, c, seed=seed, dtype=dtype), randn(*lead, n, c, seed=seed + 1, dtype=dtype),
        randn(*lead, n, seed=seed + 2), randn(*lead, n, n, seed=seed + 3),
        randn(m, n * c, seed=seed + 4, scale=0.2), 1 + randn(3, seed=seed + 5, scale=0.2),
        randn(m, seed=seed + 6), randn(c, seed=seed + 7), randn(*lead, n, seed=seed + 8),
    )  # fmt: skip
    shapes = ((c,), (n,), (n,), (n, n), (n, c))
    return given, [randn(*lead, *shape, seed=seed + 9 + k) for k, shape in enumerate(shapes)]


def boundary(f, x, post, comb, fn, scale, base, bias, weights=None, iters=3, **options):
    return hc_boundary(f, x, post, comb, weights, fn, scale, base, iters, bias=bias, **options)


def specified(f, x, post, comb, fn, scale, base, bias, weights=None, iters=3, comb_order="io"):
    """The results and gradients from the specifications of the parts."""
    options = {"comb_order": comb_order}
    streams = reference.hc_post(f, x, post, comb, bias, **options)
    mixes = reference.hc_mixes(streams, fn)
    found = reference.hc_split_sinkhorn(mixes, scale, base, x.size(-2), iters, **options)
    return reference.hc_pre(streams, found[0] if weights is None else weights), *found, streams


def results(function, given, upstream, **options):
    leaves = [t.detach().clone().requires_grad_() for t in given]
    found = function(*leaves, **options)
    gradients = torch.autograd.grad(
        found, leaves, [g.to(t.dtype) for g, t in zip(upstream, found, strict=True)]
    )
    return dict(zip(NAMES, (*(t.detach() for t in found), *gradients), strict=False))
