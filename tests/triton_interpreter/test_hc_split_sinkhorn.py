"""The Triton code generated from the bodies of hc_split_sinkhorn, tile by tile, against float64."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.lab.operators import KERNELS
from helion_sinkhorn.lab.rounding import worst
from helion_sinkhorn.lab.split.budget import error_budget, exact
from helion_sinkhorn.lab.split.workloads import ROWS
from helion_sinkhorn.ops.mhc.split import launch
from helion_sinkhorn.ops.mhc.split.options import CoefficientGradients
from helion_sinkhorn.runtime.kernel import Choice, default_choice

WORKLOADS = {w.name.removeprefix("hc_"): w for w in ROWS if "ci" in w.tags}
pytestmark = pytest.mark.usefixtures("as_compiled")
# two tiles and a tail, in blocks smaller than the default's
TOKENS, BLOCK = 13, 8
ITERATIONS = {launch.FORWARD: 2, launch.REDUCED: 2, launch.BACKWARD: 9}
"""Gradients have a segment that is run again, and a rest."""


def small(name, kernel):
    """(workload, its inputs, the default of a kernel in small blocks)."""
    workload = dataclasses.replace(WORKLOADS[name], batch=1, tokens=TOKENS, n_iters=ITERATIONS[kernel])
    mixes, scale, base, *gradients = workload.make_inputs()
    call = launch.call_for(workload.n, workload.n_iters, workload.eps, workload.dtype)
    chosen = default_choice(KERNELS[kernel], call, DEVICES["h200"])
    config = tuple(sorted({**dict(chosen.config), "block_sizes": (BLOCK,)}.items()))
    choice = Choice(kernel, config, chosen.variant, "a test")
    return workload, (mixes, *gradients, scale[None], base[None]), choice


def check(workload, inputs, **found):
    truth, budgets = exact(workload, *inputs), error_budget(workload, *inputs)
    shares = {
        name: worst(t.reshape(truth[name].shape), truth[name], budgets[name]) for name, t in found.items()
    }
    assert max(shares.values()) <= 1, shares


BY_NIGHT = pytest.mark.nightly("interpreted, 8 s; partial sums of padded streams run always")


@BY_NIGHT
@pytest.mark.parametrize("name", ["outputs_last", "three_streams"])
def test_coefficients(name):
    workload, inputs, choice = small(name, launch.FORWARD)
    mixes, _, _, _, scale, base = inputs
    found = launch.forward(mixes, scale[0], base[0], workload.arguments, torch.float32, choice)
    check(workload, inputs, **dict(zip(("pre", "post", "comb"), found, strict=True)))


@pytest.mark.parametrize("name", [pytest.param("partials", marks=BY_NIGHT), "partials_padded"])
def test_coefficients_of_partial_sums(name):
    """The last tile is cut short within every split but the last, where it ends the tensor."""
    workload, inputs, choice = small(name, launch.REDUCED)
    mixes, _, _, _, scale, base = inputs
    partials, squares = (t.squeeze(1) for t in workload.parts(mixes))
    given = scale[0], base[0], workload.arguments, torch.float32, choice
    *values, of_mixes, norms = launch.forward_reduced(partials, workload.reduce(squares), *given)
    check(workload, inputs, **dict(zip(("pre", "post", "comb"), values, strict=True)))
    total = functools.reduce(torch.add, partials)
    assert torch.equal(of_mixes, norms[:, :1] * total)
    partials, squares = (t.movedim(0, 1).contiguous().movedim(1, 0) for t in (partials, squares))
    again = launch.forward_reduced(partials, workload.reduce(squares), *given)
    assert all(torch.equal(a, b) for a, b in zip(again, (*values, of_mixes, norms), strict=True))


@BY_NIGHT
@pytest.mark.parametrize("name", ["outputs_last", "three_streams"])
def test_gradients(name):
    workload, inputs, choice = small(name, launch.BACKWARD)
    mixes, *upstream, scale, base = inputs
    given = mixes, scale[0], base[0], workload.arguments
    dmixes, sums = launch.backward(CoefficientGradients(*upstream), *given, choice=choice)
    dbase, dscale = sums.split((mixes.size(-1), 3))
    check(workload, inputs, dmixes=dmixes, dbase=dbase, dscale=dscale)


@pytest.mark.nightly("interpreted, 20 s; its zeros are reference mode's too, in contract/")
def test_an_output_that_nothing_used():
    unused = 2
    workload, inputs, choice = small("two_streams", launch.BACKWARD)
    mixes, *gradients, scale, base = inputs
    upstream = CoefficientGradients(*(None if k == unused else t for k, t in enumerate(gradients)))
    given = mixes, scale[0], base[0], workload.arguments
    dmixes, sums = launch.backward(upstream, *given, choice=choice)
    zeros = [torch.zeros_like(t) if k == unused else t for k, t in enumerate(gradients)]
    dbase, dscale = sums.split((mixes.size(-1), 3))
    check(workload, (mixes, *zeros, scale, base), dmixes=dmixes, dbase=dbase, dscale=dscale)
