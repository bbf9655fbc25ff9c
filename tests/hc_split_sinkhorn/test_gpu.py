"""hc_split_sinkhorn on a CUDA or ROCm device: what configs and partial sums may not change."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import values_and_gradients

from helion_sinkhorn import hc_split_sinkhorn
from helion_sinkhorn.lab.operators import TRIALS
from helion_sinkhorn.lab.split.workloads import HcWorkload
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.kernel import candidates

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
    *values, found, norms = launch.forward_reduced(partials, row.reduce(squares), *given)
    total = partials[0]
    for t in partials[1:]:
        total = total + t
    assert torch.equal(found, norms[..., :1] * total)
    again = launch.forward(found, *given)
    assert all(torch.equal(a, b) for a, b in zip(values, again, strict=True))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        (launch.FORWARD, "float32"), (launch.FORWARD, "bfloat16"), (launch.REDUCED, "float32"),
        (launch.BACKWARD, "float32"), (launch.BACKWARD, "bfloat16"),
    ],
)  # fmt: skip
def test_every_config_makes_the_same_bits(name, dtype):
    """Batches of other sizes may have other configs of the 20 iterations that are tuned."""
    call, trial = launch.call_for(4, 20, 1e-6, getattr(torch, dtype)), TRIALS[name]
    operands = trial.operands(call, 515, DEVICE)
    tried = candidates(launch.KERNELS[name], call, door.device_at(door.index_of(operands[0]))[0])
    made = [trial.run(call, choice, *operands) for choice in tried]
    assert len(made) > 2
    # the gradient's sums over tokens cover one tile
    of_tokens = slice(1) if name == launch.BACKWARD else slice(None)
    for other in made[1:]:
        assert all(torch.equal(a, b) for a, b in zip(other[of_tokens], made[0][of_tokens], strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_bits_are_those_of_every_tuned_batch(dtype):
    row = workload(tokens=LARGE, dtype=dtype)
    mixes, scale, base, *gradients = (t.to(DEVICE) for t in row.make_inputs())
    whole = results(mixes, scale, base, gradients, **row.options)
    for size in (1, 200, 1500, 9000):
        part = results(mixes[:, :size], scale, base, [t[:, :size] for t in gradients], **row.options)
        assert all(torch.equal(a[:, :size], b) for a, b in zip(whole[:4], part[:4], strict=True)), size
