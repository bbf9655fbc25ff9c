"""hc_split_sinkhorn on a CUDA or ROCm device: what configs and partial sums may not change."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import values_and_gradients

from helion_sinkhorn import hc_split_sinkhorn
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split import launch

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LARGE = (1 << 17) + 3
"""Tokens beyond those of all tuned batches but the largest."""


def workload(**options):
    return HcWorkload("asked", 1, frozenset(), "a test", **options)


def results(mixes, scale, base, gradients, **options):
    """(pre, post, comb, dmixes, dscale, dbase) of the kernels."""
    tensors = mixes, scale, base
    return values_and_gradients(hc_split_sinkhorn, tensors, gradients, implementation="helion", **options)


def test_mixes_of_partial_sums_are_their_sum_in_order():
    """As bits, and what follows from them is what follows from the same mixes."""
    row = workload(tokens=1000, splits=8)
    mixes, scale, base, *_ = (t.to(DEVICE) for t in row.make_inputs())
    given = scale, base, row.arguments, torch.float32
    partials, squares = row.parts(mixes)
    *values, summed, norms = launch.forward_reduced(partials, row.reduce(squares), *given)
    total = partials[0]
    for t in partials[1:]:
        total = total + t
    assert torch.equal(summed, norms[..., :1] * total)
    again = launch.forward(summed, *given)
    assert all(torch.equal(a, b) for a, b in zip(values, again, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_those_of_every_tuned_batch(dtype):
    row = workload(tokens=LARGE, dtype=dtype)
    mixes, scale, base, *gradients = (t.to(DEVICE) for t in row.make_inputs())
    whole = results(mixes, scale, base, gradients, **row.options)
    for size in (1, 200, 1500, 9000):
        part = results(mixes[:, :size], scale, base, [t[:, :size] for t in gradients], **row.options)
        assert all(torch.equal(a[:, :size], b) for a, b in zip(whole[:4], part[:4], strict=True)), size
