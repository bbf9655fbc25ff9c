"""The bodies that hc_site launches, in Helion's reference mode, and its torch operators on CPU tensors."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from autograd_calls import assert_equal, randn
from hc_sites import site_inputs, site_results
from launches import SITES, kernels_on_cpu

from helion_sinkhorn import hc_site
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.ops.mhc.mixes import launch as mixes_launch
from helion_sinkhorn.ops.mhc.options import Kept, SiteGradients, SiteOptions, SiteParameters
from helion_sinkhorn.ops.mhc.pre import launch as pre_launch
from helion_sinkhorn.ops.mhc.site import launch, torch_op
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
    found = split_launch.forward(mixes, scale, base, constants.of_split(3), torch.float32)
    assert_equal((pre, post, comb), found)
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
    spread = [
        distribute_tensor(t, mesh, [p]).requires_grad_() for t, p in zip(given, placements, strict=True)
    ]
    y, post, comb, residual = hc_site(*spread)
    assert all(isinstance(t, DTensor) for t in (y, post, comb, residual))
    of = [distribute_tensor(t, mesh, [Shard(0)]) for t in upstream]
    found = torch.autograd.grad((residual, y, post, comb), spread, of)
    for name, t in zip(RESULTS, (y, post, comb, *found), strict=True):
        torch.testing.assert_close(t.full_tensor().detach(), expected[name])
