"""The torch operators of hc_site, on CPU tensors through Helion's reference mode."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from autograd_calls import assert_equal, randn
from hc_sites import site_inputs, site_results, upstream_of
from launches import SITES, kernels_on_cpu
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_post, hc_site, nn
from helion_sinkhorn.lab.site.budget import RESULTS
from helion_sinkhorn.ops.mhc.site import torch_op

FORWARD = torch.ops.helion_sinkhorn.hc_site.default
BACKWARD = torch.ops.helion_sinkhorn.hc_site_backward.default
CONSTANTS = 3, 1e-6, 1e-6, 2.0, 1e-6, 0.0, "io", "float32", False
SMALL = {"n": 2, "c": 3}
"""A site of eight mixes; the calls below are about shapes and gradients, not about sums."""


@pytest.fixture(autouse=True)
def _kernels(monkeypatch):
    kernels_on_cpu(monkeypatch, SITES)


def site(x, fn, scale, base):
    """A short call, between other operations."""
    return hc_site(x * 1, fn, scale, base, 3)


def assert_near(found, expected):
    for name in RESULTS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [True, False], ids=["own weights", "weights of another site"])
def test_opcheck(own):
    (x, fn, scale, base), (dresidual, dy, dpost, dcomb) = site_inputs(2, 3, **SMALL)
    weights = None if own else randn(2, 3, 2, seed=9)
    leaves = [None if t is None else t.detach().requires_grad_() for t in (x, fn, scale, base, weights)]
    tests = "test_schema", "test_faketensor", "test_autograd_registration"
    torch.library.opcheck(FORWARD, (*leaves, *CONSTANTS), test_utils=tests)
    _, pre, _, _, mixes, norms = FORWARD(x, fn, scale, base, weights, *CONSTANTS)
    given = x, fn, scale, base, pre if own else weights, mixes, norms, own
    for upstream in ((dresidual, dy, None, dpost, dcomb), (None, None, dpost, None, None)):
        torch.library.opcheck(BACKWARD, (*upstream, *given, *CONSTANTS), test_utils=tests)


@pytest.mark.parametrize("lead", [(3,), (2, 3)], ids=str)
def test_results_may_be_changed_in_place(lead):
    """By dropout(inplace=True) on the input of a sublayer, for instance."""
    given, upstream = site_inputs(*lead, **SMALL)
    expected = site_results(given, [upstream[0], *(2 * t for t in upstream[1:])])

    def twice(*given):
        y, post, comb, residual = hc_site(*given)
        return y.mul_(2), post.mul_(2), comb.mul_(2), residual

    found = site_results(given, upstream, twice)
    gradients = [name for name in RESULTS if name.startswith("d")]
    assert_equal([found[name] for name in gradients], [expected[name] for name in gradients])


@pytest.mark.parametrize("lead", [(), (2, 3), (2, 0)], ids=str)
def test_fakes_have_the_metadata_of_what_runs(lead):
    (x, fn, scale, base), (dresidual, dy, dpost, dcomb) = site_inputs(*lead, **SMALL, dtype=torch.bfloat16)
    tensors = x.mT.contiguous().mT, fn.bfloat16(), scale, base, dresidual, dy, dpost, dcomb

    def both(x, fn, scale, base, dresidual, dy, dpost, dcomb):
        found = FORWARD(x, fn, scale, base, None, *CONSTANTS)
        given = x, fn, scale, base, found[1], *found[4:], True
        return *found, *BACKWARD(dresidual, dy, None, dpost, dcomb, *given, *CONSTANTS)

    with FakeTensorMode() as mode:
        fake = both(*[mode.from_tensor(t) for t in tensors])
    for a, b in zip(both(*tensors), fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_compiled_in_one_graph_for_any_number_of_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(site, fullgraph=True, backend=counter)
    for tokens in (3, 5, 8):
        given, upstream = site_inputs(tokens, **SMALL, seed=tokens)
        leaves = [t.clone().requires_grad_() for t in given]
        torch._dynamo.mark_dynamic(leaves[0], 0)
        y, post, comb, residual = compiled(*leaves)
        grads = torch.autograd.grad((residual, y, post, comb), leaves, upstream)
        found = dict(zip(RESULTS, (y, post, comb, *grads), strict=True))
        assert_near(found, site_results(given, upstream, f=site))
    assert counter.frame_count == 1
    with torch.no_grad():
        assert_equal(compiled(*given), site(*given))


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


def test_exported_program_runs_at_other_token_counts():
    tokens, layer = torch.export.Dim("tokens", min=2), Layer().requires_grad_(False)
    x = site_inputs(2, 3, **SMALL)[0][0]
    program = torch.export.export(layer, (x,), dynamic_shapes=({1: tokens},))
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for count in (2, 7):
        x = site_inputs(2, count, **SMALL, seed=count)[0][0]
        torch.testing.assert_close(program.module()(x), layer(x))


@pytest.mark.parametrize("dims", [(0, None, None, None), (1, 0, 0, 0)], ids=str)
def test_vmap(dims):
    each = [site_inputs(3, **SMALL, seed=10 * k)[0] for k in range(2)]
    stacked = [
        each[0][k] if d is None else torch.stack([one[k] for one in each], d) for k, d in enumerate(dims)
    ]
    found = torch.vmap(lambda *t: tuple(hc_site(*t, 3)), in_dims=dims)(*stacked)
    for k in range(2):
        one = [each[0][i] if d is None else each[k][i] for i, d in enumerate(dims)]
        for a, b in zip(found, hc_site(*one, 3), strict=True):
            torch.testing.assert_close(a[k], b, rtol=1e-5, atol=1e-5)


def test_gradients_of_each_sample():
    each = [site_inputs(3, **SMALL, seed=10 * k) for k in range(2)]
    x, *upstream = (torch.stack(parts) for parts in zip(*[(g[0], *u) for g, u in each], strict=True))
    parameters = each[0][0][1:]

    def gradients(x, dresidual, dy, dpost, dcomb):
        _, pullback = torch.func.vjp(lambda *t: tuple(hc_site(*t, 3)), x, *parameters)
        return pullback((dy, dpost, dcomb, dresidual))

    found = torch.vmap(gradients)(x, *upstream)
    for k, (given, of_one) in enumerate(each):
        expected = site_results((given[0], *parameters), of_one, f=site)
        for a, name in zip(found, ("dx", "dfn", "dscale", "dbase"), strict=True):
            torch.testing.assert_close(a[k], expected[name], rtol=1e-5, atol=1e-5)


def test_what_is_kept_is_the_arguments_and_a_few_rows_for_each_token():
    """The streams once, fn, scale and base, and of a token pre, mixes and the norm."""
    (x, fn, scale, base), _ = site_inputs(5, **SMALL, dtype=torch.bfloat16)
    leaves, kept = [t.requires_grad_() for t in (x, fn, scale, base)], []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        hc_site(*leaves, 3)
    assert sorted(t.nbytes for t in kept) == sorted(
        [*(t.nbytes for t in leaves), 5 * 2 * 4, 5 * 8 * 4, 5 * 2 * 4]
    )
    assert {t.data_ptr() for t in kept} >= {t.data_ptr() for t in leaves}


def test_second_derivatives_and_forward_mode_say_what_to_do():
    (x, *parameters), _ = site_inputs(2, **SMALL)
    x.requires_grad_()
    y, _, _, residual = hc_site(x, *parameters, 3)
    (dx,) = torch.autograd.grad((y, residual), x, (randn(*y.shape), randn(*x.shape)), create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"no second derivative.*helion_sinkhorn\.reference\.hc_site"
    ):
        dx.sum().backward()
    x = x.detach()
    with pytest.raises(NotImplementedError, match=r"no forward-mode derivative.*reference\.hc_site"):
        torch.func.jvp(lambda t: hc_site(t, *parameters, 3).y, (x,), (x,))


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
    y, post, comb, residual = hc_site(*spread, implementation="pytorch")
    assert all(isinstance(t, DTensor) for t in (y, post, comb, residual))
    of = [distribute_tensor(t, mesh, [Shard(0)]) for t in upstream]
    found = torch.autograd.grad((residual, y, post, comb), spread, of)
    for name, t in zip(RESULTS, (y, post, comb, *found), strict=True):
        torch.testing.assert_close(t.full_tensor().detach(), expected[name])
