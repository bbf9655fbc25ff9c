"""The Triton code generated from the bodies of hc_split_sinkhorn, tile by tile, against float64."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from tiles import assert_within

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.split.budget import RESULTS
from helion_sinkhorn.lab.split.workloads import ROWS
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.runtime.kernel import Choice, default_choice

WORKLOADS = {w.name.removeprefix("hc_"): w for w in ROWS if "ci" in w.tags}
pytestmark = pytest.mark.usefixtures("as_compiled")
VALUES, GRADIENTS = RESULTS[:3], RESULTS[3:]
# two tiles and a tail, in blocks smaller than the default's
TOKENS, BLOCK = 13, 8
ITERATIONS = {launch.FORWARD: 2, launch.REDUCED: 2, launch.BACKWARD: 9}
"""Gradients have a segment that is run again, and a rest."""


def small(name, kernel):
    """(workload, the default of a kernel in small blocks, by its name)."""
    workload = dataclasses.replace(WORKLOADS[name], batch=1, tokens=TOKENS, n_iters=ITERATIONS[kernel])
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    chosen = default_choice(KERNELS[kernel], call, DEVICES["h200"])
    config = tuple(sorted({**dict(chosen.config), "block_sizes": (BLOCK,)}.items()))
    return workload, {kernel: Choice(kernel, config, chosen.variant, "a test")}


BY_NIGHT = pytest.mark.nightly("interpreted, 8 s; partial sums of padded streams run always")


@BY_NIGHT
@pytest.mark.parametrize("name", ["outputs_last", "three_streams"])
def test_coefficients(name):
    assert_within(*small(name, launch.FORWARD), VALUES)


@pytest.mark.parametrize("name", [pytest.param("partials", marks=BY_NIGHT), "partials_padded"])
def test_coefficients_of_partial_sums(name):
    """The last tile is cut short within every split but the last, where it ends the tensor."""
    workload, choices = small(name, launch.REDUCED)
    assert_within(workload, choices, VALUES)
    mixes, scale, base, *_ = workload.make_inputs()
    partials, squares = (t.squeeze(1) for t in workload.parts(mixes))
    given = scale, base, workload.arguments, torch.float32, choices[launch.REDUCED]
    coefficients = launch.forward_reduced(partials, workload.reduce(squares), *given)
    *_, of_mixes, norms = coefficients
    assert torch.equal(of_mixes, norms[:, :1] * functools.reduce(torch.add, partials))
    partials, squares = (t.movedim(0, 1).contiguous().movedim(1, 0) for t in (partials, squares))
    again = launch.forward_reduced(partials, workload.reduce(squares), *given)
    assert all(torch.equal(a, b) for a, b in zip(again, coefficients, strict=True))


@BY_NIGHT
@pytest.mark.parametrize("name", ["outputs_last", "three_streams", "unused_comb"])
def test_gradients(name):
    assert_within(*small(name, launch.BACKWARD), GRADIENTS)
