"""The errors of public functions for a wrong kind of argument, and integers of other packages."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy
import pytest
import torch
from autograd_calls import assert_equal, randn

import helion_sinkhorn as hs

N, C = 4, 8
SITE = randn(24, N * C), torch.ones(3), torch.zeros(24)
X, F, POST, COMB = randn(3, N, C), randn(3, C, seed=1), randn(3, N, seed=2), randn(3, N, N, seed=3)
PARTS, SQUARES = randn(2, 3, 24), randn(2, 3) ** 2
FIRST = {
    "plan": ("logits", COMB, hs.plan),
    "Sinkhorn": ("logits", COMB, hs.nn.Sinkhorn()),
    "FusedMHC": ("logits", COMB, hs.nn.FusedMHC()),
    "SinkhornLaneMixer": ("x_lanes", X, hs.nn.SinkhornLaneMixer(N)),
    "marginal_error": ("p", COMB, hs.marginal_error),
    "hc_expand": ("h", F, lambda x: hs.hc_expand(x, N)),
    "HyperConnection": ("x", X, hs.nn.HyperConnection(C)),
    "HyperHead": ("x", X, hs.nn.HyperHead(C)),
    "HyperBoundary": ("f", F, lambda x: hs.nn.HyperBoundary(C)(x, X, POST, COMB)),
}
"""Functions and modules beside those of contract/test_refused.py, which has every argument."""


@pytest.mark.parametrize("function", FIRST)
def test_what_is_no_tensor_of_floats_is_named_with_how_it_becomes_one(function):
    name, x, call = FIRST[function]
    call(x)
    other = SimpleNamespace(__dlpack__=None)
    for given, said in (
        (1, f"{name} is an int; pass a torch.Tensor of shape ("),
        ([1.0], f"{name} is a list; pass a torch.Tensor of shape ("),
        (other, f"): torch.from_dlpack({name})"),
        (x.cfloat(), "convert with .real or .abs()"),
        (x.long(), f"{name} has dtype torch.int64; accepted are torch.float32, "),
    ):
        with pytest.raises(TypeError, match=re.escape(said)):
            call(given)
    with pytest.raises(TypeError, match=rf"{name} is an ndarray; .*: torch\.from_numpy\({name}\)"):
        call(numpy.ones(2))


@dataclass
class Index:
    """An integer that operator.index accepts, such as numpy's."""

    value: int

    def __index__(self):
        return self.value


INTEGERS = {
    "sinkhorn": (3, lambda i: hs.sinkhorn(COMB, i)),
    "plan": (3, lambda i: hs.plan(COMB, i)),
    "Sinkhorn": (3, lambda i: hs.nn.Sinkhorn(i)(COMB)),
    "FusedMHC": (3, lambda i: hs.nn.FusedMHC(i)(COMB)),
    "SinkhornLaneMixer": (N, lambda i: hs.nn.SinkhornLaneMixer(i, i)(X)),
    "hc_split_sinkhorn": (N, lambda i: hs.hc_split_sinkhorn(randn(3, 24), *SITE[1:], i, i)),
    "reduce": (9, lambda i: hs.hc_split_sinkhorn(PARTS, *SITE[1:], reduce=hs.Reduce(SQUARES, i))),
    "hc_site": (3, lambda i: hs.hc_site(X, *SITE, i)),
    "hc_boundary": (3, lambda i: hs.hc_boundary(F, X, POST, COMB, None, *SITE, i)),
    "hc_coeffs": (3, lambda i: hs.hc_coeffs(X, *SITE, i)),
    "hc_expand": (3, lambda i: hs.hc_expand(F, i)),
    "HyperConnection": (N, lambda i: hs.nn.HyperConnection(i, i, i)(randn(3, N, N))),
    "HyperHead": (N, lambda i: hs.nn.HyperHead(i, i)(randn(3, N, N))),
    "HyperBoundary": (C, lambda i: hs.nn.HyperBoundary(i, sinkhorn_iters=i)(F, X, POST, COMB)),
    "recompute_streams": (2, lambda i: hs.recompute_streams(i).__enter__()),
}


@pytest.mark.parametrize("function", INTEGERS)
def test_integers_of_another_package_are_ints(function):
    value, call = INTEGERS[function]
    results = []
    for given in (value, Index(value)):
        torch.manual_seed(0)
        results.append(call(given))
    expected, of_index = ([r] if isinstance(r, torch.Tensor) else r for r in results)
    if isinstance(expected, (list, tuple)):
        assert_equal(of_index, expected)
    else:
        assert of_index == expected
    for given in (Index(-1), True, 2.0, torch.tensor(value)):
        with pytest.raises((TypeError, ValueError), match=r"is .*; pass an int "):
            call(given)
    call(numpy.int64(value))
