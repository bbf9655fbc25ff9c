"""hc_mixes with prenorm: the product and the mean square apart, by PyTorch and by the kernels' bodies."""

from __future__ import annotations

import mhc_equations as equations
import pytest
import torch
from autograd_calls import randn, values_and_gradients
from launches import kernels_on_cpu
from mhc_equations import assert_within, truth_and_budget

from helion_sinkhorn import hc_mixes
from helion_sinkhorn.ops.mhc.mixes.space import CHUNK

USED = {"both": (True, True), "product": (True, False), "mean square": (False, True)}


def prenorm(x, fn):
    """No eps has a part in it."""
    return hc_mixes(x, fn, norm_eps=0.3, eps_outside=True, prenorm=True)


@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        ((4, 12, 24), torch.bfloat16),
        ((3, 7, 1), torch.float16),
        ((2, CHUNK // 2 + 9, 8), torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("made_by", ["pytorch", "kernels", pytest.param("gpu", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("used", USED)
def test_against_float64(used, sizes, dtype, made_by, monkeypatch):
    """A token is zero.  Gradients of streams are rounded once; sums are over one chunk of columns or more."""
    if made_by == "kernels":
        kernels_on_cpu(monkeypatch)
    n, c, m = sizes
    tensors = [randn(2, 3, n, c, dtype=dtype), randn(m, n * c, seed=1, scale=0.2)]
    tensors[0][1, 1] = 0
    upstream = [randn(2, 3, m, seed=2), randn(2, 3, seed=3)]
    upstream = [g if taken else None for g, taken in zip(upstream, USED[used], strict=True)]
    equation, function = equations.prenorm, prenorm
    if used == "mean square":
        # which fn has no part in
        fn, tensors = tensors[1], tensors[:1]
        equation = lambda x, at=equations.exactly: equations.prenorm(x, fn.double(), at)  # noqa: E731
        function = lambda x: prenorm(x, fn.to(x.device))  # noqa: E731
    truth, budget = truth_and_budget(equation, tensors, upstream)
    device = "cuda" if made_by == "gpu" else "cpu"
    there = [[None if t is None else t.to(device) for t in of] for of in (tensors, upstream)]
    results = [t.cpu() for t in values_and_gradients(function, *there)]
    assert [t.dtype for t in results] == [torch.float32] * 2 + [dtype, torch.float32][: len(results) - 2]
    assert_within(results, truth, budget)
