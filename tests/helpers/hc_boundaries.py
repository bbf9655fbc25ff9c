"""Inputs of hc_boundary, and its results with gradients, by it and by its specification."""

from __future__ import annotations

from functools import partial

import torch
from autograd_calls import randn, values_and_gradients

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


def called(function, *given, own=False, sinkhorn_iters=3, **options):
    """A call on `boundary_inputs`, collapsed by the site's own weights with `own`, or without pre_next."""
    *update, fn, scale, base, bias = given[:8]
    pre_next = None if own or len(given) == 8 else given[8]
    return function(*update, pre_next, fn, scale, base, sinkhorn_iters, bias=bias, **options)


boundary, specified = partial(called, hc_boundary), partial(called, reference.hc_boundary)


def results(function, given, upstream, **options):
    return dict(zip(NAMES, values_and_gradients(function, given, upstream, **options), strict=False))
