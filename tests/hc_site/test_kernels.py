"""The bodies of hc_site and hc_boundary, in Helion's reference mode, and their operators on CPU tensors."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from autograd_calls import assert_equal, randn
from hc_boundaries import boundary, boundary_inputs
from hc_sites import site_inputs, site_results
from launches import SITES, kernels_on_cpu

from helion_sinkhorn import hc_post, hc_pre, hc_site
from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.site import launch, torch_op
from helion_sinkhorn.ops.mhc.site.boundary import launch as boundary_launch
from helion_sinkhorn.ops.mhc.site.boundary.space import MOST_STREAMS
from helion_sinkhorn.ops.mhc.split import launch as split_launch
from helion_sinkhorn.runtime.kernel import default_choice
from helion_sinkhorn.runtime.launch import device_of


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    kernels_on_cpu(monkeypatch, SITES)


def test_values_have_the_bits_of_the_three_operators_in_turn():
    """The columns are two chunks, so that the sums of the projection are partial."""
    (x, fn, scale, base), _ = site_inputs(5, n=3, c=400)
    constants = SiteOptions(5, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False)
    site = SiteParameters(fn, scale, base)
    y, pre, post, comb, mixes, norms = launch.forward(x, site, None, constants)
    given = mixes_launch.forward(x, fn, constants.norm_eps, constants.eps_outside, constants.precision)
    assert_equal((mixes, norms), given)
    coefficients = split_launch.forward(mixes, scale, base, constants.of_split(3), torch.float32)
    assert_equal((pre, post, comb), coefficients)
    assert_equal((y,), (pre_launch.forward(x, pre),))


@pytest.mark.parametrize("normed", [False, True])
def test_a_gradient_in_float32_takes_the_default_and_not_what_was_timed_with_a_narrower_one(normed):
    (x, fn, scale, base), (dresidual, dy, dpost, dcomb) = site_inputs(3, c=64, dtype=torch.bfloat16)
    options = SiteOptions().checked()
    weight = torch.ones(64, dtype=torch.bfloat16) if normed else None
    site = SiteParameters(fn, scale, base, y_norm_weight=weight)
    _, pre, _, _, *made = launch.forward(x, site, None, options)
    upstream = SiteGradients(dresidual, dy, None, dpost, dcomb)
    with mock.patch.object(mixes_launch, "gradients", wraps=mixes_launch.gradients) as gradients:
        launch.backward(upstream, Kept(x, site, pre, *made, own=True), options)
    (call,) = gradients.call_args_list
    _, _, _, of, choice, others, kernel, *_ = call.args
    assert others.dy.dtype is (torch.float32 if normed else torch.bfloat16)
    assert choice == (default_choice(kernel, of, device_of(x)) if normed else None)


@pytest.mark.parametrize("own", [False, True])
def test_what_the_kernel_does_not_take_is_made_by_the_parts(monkeypatch, own):
    """More streams than fit in its registers: hc_post, then the kernels of hc_site."""
    monkeypatch.delattr(boundary_launch, "one_pass")
    given, _ = boundary_inputs(3, n=MOST_STREAMS + 1, c=24)
    f, x, post, comb, fn, scale, base, bias, weights = given
    outputs = boundary(*given, own=own)
    streams = hc_post(f, x, post, comb, bias)
    site = hc_site(streams, fn, scale, base, 3)
    expected = site.y if own else hc_pre(streams, weights), site.post, site.comb, streams
    # the CPU adds five streams in a different order than the kernels
    results = outputs.y, outputs.post, outputs.comb, outputs.residual
    torch.testing.assert_close(results, expected, rtol=1e-5, atol=1e-5)


def test_streams_and_collapse_have_the_bits_of_the_parts():
    given, _ = boundary_inputs(7, n=4, c=24, dtype=torch.bfloat16)
    results = boundary(*given)
    f, x, post, comb, *_, bias, weights = given
    streams = hc_post(f, x, post, comb, bias)
    assert_equal((results.residual, results.y), (streams, hc_pre(streams, weights)))


FORWARD = torch.ops.helion_sinkhorn.hc_site.default
BACKWARD = torch.ops.helion_sinkhorn.hc_site_backward.default
CONSTANTS = 3, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False, 1e-6
SMALL = {"n": 2, "c": 3}
"""A site of eight mixes; the calls below are about shapes and gradients, not about sums."""


def test_opcheck_with_the_weights_of_another_site():
    (x, fn, scale, base), (dresidual, dy, dpost, dcomb) = site_inputs(2, 3, **SMALL)
    weights = randn(2, 3, 2, seed=9)
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    for norm in (None, randn(3, seed=10)):
        site = x, fn, scale, base, weights, norm
        leaves = [None if t is None else t.detach().requires_grad_() for t in site]
        torch.library.opcheck(FORWARD, (*leaves, *CONSTANTS), test_utils=tests)
        *_, mixes, norms = FORWARD(*site, *CONSTANTS)
        given = *site, mixes, norms, False, *CONSTANTS
        every, alternate = [True] * 5, [True, False, False, True, False]
        for upstream, wanted in (
            ((dresidual, dy, None, dpost, dcomb), every),
            ((None, None, dpost, None, None), every),
            ((None, dy, None, None, None), alternate),
        ):
            torch.library.opcheck(BACKWARD, (*upstream, *given, wanted), test_utils=tests)


def test_distributed_tensors_go_to_the_parts(mesh, monkeypatch):
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    def never(*_):
        raise AssertionError("the operator has no rule for distributed tensors")

    given, upstream = site_inputs(4, 3, **SMALL)
    expected = site_results(given, upstream, implementation="pytorch")
    monkeypatch.setattr(torch_op, "run", never)
    placements = Shard(0), Replicate(), Replicate(), Replicate()
    spread = [distribute_tensor(t, mesh, [p]) for t, p in zip(given, placements, strict=True)]
    results = site_results(spread, [distribute_tensor(t, mesh, [Shard(0)]) for t in upstream])
    assert all(isinstance(t, DTensor) for t in results.values())
    for name, t in expected.items():
        torch.testing.assert_close(results[name].full_tensor(), t)
