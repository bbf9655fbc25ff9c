"""Gradients added to main_grad: the sums that autograd makes in grad, and what hooks of trainers see."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_equal, randn

from helion_sinkhorn import hc_post, hc_site, nn
from helion_sinkhorn.mhc.main_grad import into_main_grad, mark_sequence_parallel

N, C = 4, 24


def step(site, seed):
    """One backward with random upstream gradients."""
    y, post, comb, residual = site.enter(randn(7, N, C, seed=seed))
    hc_post(y.tanh(), residual, post, comb).backward(randn(7, N, C, seed=seed + 10))


def sites():
    """Two modules with the same values."""
    torch.manual_seed(0)
    plain = nn.HyperConnection(C, N, sinkhorn_iters=3)
    fused = nn.HyperConnection(C, N, sinkhorn_iters=3)
    fused.load_state_dict(plain.state_dict())
    fused.fuse_wgrad_accumulation = True
    return plain, fused


@pytest.mark.parametrize("flag", [False, True], ids=["bare", "grad_added_to_main_grad"])
def test_two_steps_add_up_in_the_buffer(flag):
    plain, fused = sites()
    started = {}
    for name, p in fused.named_parameters():
        p.main_grad = torch.full_like(p, 0.5)
        started[name] = p.main_grad.clone()
        if flag:
            p.grad_added_to_main_grad = False
    for seed in (1, 2):
        step(plain, seed)
        step(fused, seed)
    for (name, a), b in zip(plain.named_parameters(), fused.parameters(), strict=True):
        assert a.grad.abs().max() > 1e-3
        torch.testing.assert_close(b.main_grad - started[name], a.grad, rtol=1e-5, atol=1e-6)
        if flag:
            assert b.grad_added_to_main_grad is True
            assert not b.grad.any()
        else:
            assert b.grad is None


def test_the_hook_of_a_trainer_runs_once_and_adds_nothing():
    """Megatron's DistributedDataParallel adds grad unless the flag is set, then reduces main_grad."""
    plain, fused = sites()
    ready = []

    def hook(p):
        if not p.grad_added_to_main_grad:
            p.main_grad.add_(p.grad)
        p.grad = None
        ready.append(p)

    for p in fused.parameters():
        p.main_grad, p.grad_added_to_main_grad = torch.zeros_like(p), False
        p.register_post_accumulate_grad_hook(hook)
    step(plain, 3)
    step(fused, 3)
    assert {id(p) for p in ready} == {id(p) for p in fused.parameters()}
    assert len(ready) == 3
    assert_equal([p.main_grad for p in fused.parameters()], [p.grad for p in plain.parameters()])


def test_without_a_buffer_the_gradient_is_in_grad():
    plain, fused = sites()
    fused.scale.main_grad = None
    step(plain, 4)
    step(fused, 4)
    assert_equal([p.grad for p in fused.parameters()], [p.grad for p in plain.parameters()])


def test_a_narrow_parameter_is_added_without_its_rounding():
    x, upstream = randn(7, N, C, seed=5), randn(7, N, C, seed=6)
    values = randn(N * N + 2 * N, N * C, seed=7, scale=0.1, dtype=torch.bfloat16)
    scale, base = torch.ones(3), torch.zeros(N * N + 2 * N)

    def differentiate(fn):
        y, post, comb, residual = hc_site(x, fn, scale, base, 3)
        hc_post(y.tanh(), residual, post, comb).backward(upstream)

    fn = values.clone().requires_grad_()
    fn.main_grad = torch.zeros(fn.shape)
    differentiate(into_main_grad(fn))
    wide = values.float().requires_grad_()
    differentiate(wide)
    torch.testing.assert_close(fn.main_grad, wide.grad, rtol=1e-6, atol=1e-7)
    # in bfloat16 it would be off by up to 2^-9 of each entry
    assert not torch.equal(fn.main_grad, wide.grad.bfloat16().float())


def test_a_buffer_of_another_shape():
    fn = torch.randn(3, 4, requires_grad=True)
    fn.main_grad = torch.zeros(4, 3)
    with pytest.raises(ValueError, match=r"main_grad has shape \(4, 3\)"):
        into_main_grad(fn).sum().backward()


def test_frozen_and_without_gradients():
    fn = torch.randn(3, 4)
    assert into_main_grad(fn) is fn
    fn.requires_grad_()
    with torch.no_grad():
        assert into_main_grad(fn) is fn


def test_sums_over_ranks_are_marked():
    site = nn.HyperConnection(C, N)
    mark_sequence_parallel(site.parameters())
    assert all(p.sequence_parallel for p in (site.fn, site.scale, site.base))
