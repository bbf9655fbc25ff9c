"""The torch operators of hc_site, on CPU tensors through Helion's reference mode."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from autograd_calls import assert_equal, randn
from hc_sites import site_inputs, site_results, upstream_of
from launches import SITES, kernels_on_cpu
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_post, hc_site, nn
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.ops.mhc.site import torch_op

FORWARD = torch.ops.helion_sinkhorn.hc_site.default
BACKWARD = torch.ops.helion_sinkhorn.hc_site_backward.default
CONSTANTS = 3, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False, 1e-6
SMALL = {"n": 2, "c": 3}
"""A site of eight mixes; the calls below are about shapes and gradients, not about sums."""


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    kernels_on_cpu(monkeypatch, SITES)


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


class Layer(torch.nn.Module):
    """A site, a sublayer, and the new streams."""

    def __init__(self):
        super().__init__()
        self.site = nn.HyperConnection(3, 2, 3)
        self.f = torch.nn.Linear(3, 3, bias=False)

    def forward(self, x):
        y, post, comb, residual = self.site.enter(x)
        return hc_post(self.f(y).tanh(), residual, post, comb)


def stepped(layer, x, run):
    """New streams and every gradient."""
    leaf = x.clone().requires_grad_()
    layer.zero_grad()
    out = run(leaf)
    out.backward(upstream_of(5, **SMALL)[0])
    return out.detach(), leaf.grad, *(p.grad.clone() for p in layer.parameters())


def test_a_layer_compiled_and_checkpointed():
    """The residual passes to hc_post, and its gradient back into the site's kernel."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer, x = Layer(), site_inputs(5, **SMALL)[0][0]
    plain = stepped(layer, x, layer)
    compiled = stepped(layer, x, torch.compile(layer, fullgraph=True, backend="aot_eager"))
    for a, b in zip(compiled, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    for use_reentrant in (True, False):
        assert_equal(
            stepped(layer, x, lambda t, r=use_reentrant: checkpoint(layer, t, use_reentrant=r)), plain
        )


@pytest.fixture
def mesh():
    """A mesh of this process alone."""
    if not dist.is_available() or dist.is_initialized():
        pytest.skip("no process group of its own")
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


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
