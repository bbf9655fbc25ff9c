"""A token's bits are its own: no tokens around it, no run and no neighbour that is not finite change them."""

from __future__ import annotations

import math

import pytest
import torch
from autograd_calls import assert_equal
from contract import DTYPES, ROWS, listed, of_size, upstream_of

SIZES = {
    "sinkhorn": [(1, 3), (3, 5), (4, 4), (15, 16), (16, 16), (17, 33), (64, 64), (181, 181), (300, 300),
                 (400, 90), (2000, 17)],
    "sinkhorn, log": [(1, 3), (3, 5), (4, 4), (15, 16), (16, 16), (17, 33), (64, 64), (190, 180), (600, 600),
                      (2000, 17)],
    "dot_compress": [(70, 32, 16), (33, 7, 1), (257, 65, 33), (5, 3, 3)],
    "hc_split_sinkhorn": [(1, 1), (3, 1), (4, 1), (8, 1), (16, 1)],
    "hc_split_sinkhorn, reduced": [(4, 1)],
    "hc_mixes": [(1, 37, 3), (3, 33, 15), (4, 24, 24), (4, 1024, 24), (5, 7, 35), (16, 33, 288), (4, 33, 1),
                 (2, 512, 4)],
    "hc_mixes, prenorm": [(4, 12, 24)],
    "hc_pre": [(1, 4096), (4, 67), (4, 7168), (16, 130)],
    "hc_pre, norm": [(4, 70)],
    "hc_post": [(1, 4096), (4, 67), (4, 2048), (16, 130)],
    "hc_post, without bias": [(4, 67)],
    "hc_coeffs": [(4, 12)],
    "hc_head": [(3, 12), (4, 12)],
    "hc_site": [(3, 12), (4, 12)],
    "hc_boundary": [(4, 12)],
    "hc_boundary, norm": [(4, 12)],
}  # fmt: skip
"""Streams, columns, and rows of fn where they are not those of a site; sides of a matrix, and of products."""
FEWER = {30000: 10, 3 * 4096: 90, 0: 300}
"""Tokens that are drawn of more entries than these."""


def problem(name, size, device, tokens, monkeypatch, **dtypes):
    """The row of a name at a size of streams, its arguments, and upstream gradients."""
    of_size(monkeypatch, *size)
    row = ROWS[name]
    given = {k: x.to(device) for k, x in row.arguments(tokens, **dtypes).items()}
    return row, given, upstream_of(row.function(*given.values()))


def results(function, given, upstream):
    """Values, and the gradient of each argument."""
    leaves = [x.detach().requires_grad_() for x in given.values()]
    values = listed(function(*leaves))
    return [*(y.detach() for y in values), *torch.autograd.grad(values, leaves, upstream)]


def of_tokens(row, tensors):
    """The dimension of the tokens in each of `results`; None for the gradient of a parameter."""
    dims = [where[0] if where else None for where in row.token_dims().values()]
    return [0] * (len(tensors) - len(dims)) + dims


def taken(t, dim, part):
    return t if dim is None else t[(slice(None),) * dim + (part,)]


@pytest.mark.parametrize(
    ("name", "size", "dtype"),
    [
        (name, size, dtype)
        for name, sizes in SIZES.items()
        for size in sizes
        for dtype in ("float32", "narrow", "float64")
        if "reduced" not in name or dtype == "float32"
    ],
    ids=str,
)
def test_the_tokens_around_and_the_run_change_no_bit(name, size, dtype, monkeypatch):
    """On a GPU that is the gate's."""
    tokens = next(tokens for entries, tokens in FEWER.items() if size[0] * size[1] > entries)
    row, given, upstream = problem(name, size, "cpu", tokens, monkeypatch, **DTYPES[dtype])
    whole = results(row.function, given, upstream)
    assert_equal(results(row.function, given, upstream), whole)
    parts = slice(0, 9), slice(2, tokens), slice(3, 70), slice(0, 32), slice(1, tokens, 2)
    for part in (*(slice(k, k + 1) for k in range(0, tokens, 13)), *parts):
        some = {k: taken(x, d[0] if d else None, part) for (k, x), d in
                zip(given.items(), row.token_dims().values(), strict=True)}  # fmt: skip
        of_part = results(row.function, some, [g[part] for g in upstream])
        for t, t_of_all, dim in zip(of_part, whole, of_tokens(row, whole), strict=True):
            assert dim is None or torch.equal(t, taken(t_of_all, dim, part)), part
    with torch.no_grad():
        assert_equal(listed(row.function(*some.values())), of_part[: len(upstream)])


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SIZES)
def test_a_token_that_is_not_finite_stays_one(name, poison, device, monkeypatch):
    """What is not finite of it is that of the specification, whichever argument is not."""
    bad, others = 40, torch.arange(70, device=device) != 40
    row, given, upstream = problem(name, (4, 24, 24), device, 70, monkeypatch)
    clean = results(row.function, given, upstream)
    for argument, dims in row.token_dims().items():
        if not dims:
            continue
        spoilt = {**given, argument: given[argument].clone()}
        token = spoilt[argument].select(dims[0], bad)
        token[(-1,) * token.dim()] = poison
        poisoned = results(row.function, spoilt, upstream)
        wide = {k: x.cpu().double() for k, x in spoilt.items()}
        exact = results(row.specification, wide, [g.cpu().double() for g in upstream])
        for k, (t, before, dim) in enumerate(zip(poisoned, clean, of_tokens(row, poisoned), strict=True)):
            if device == "cpu" or k < len(upstream):
                assert torch.equal(t.cpu().isfinite(), exact[k].isfinite()), (argument, k)
            if dim is not None:
                assert torch.equal(taken(t, dim, others), taken(before, dim, others)), (argument, k)
