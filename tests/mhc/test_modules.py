"""HyperConnection, HyperBoundary and HyperHead on a CPU: their functions, parameters, state dicts."""

from __future__ import annotations

import io
import math

import pytest
import torch
from autograd_calls import assert_equal, randn

from helion_sinkhorn import hc_boundary, hc_head, hc_site, nn

NARROW = (torch.bfloat16, torch.float16)


def drawn(module, seed):
    """The module with every parameter drawn, so that nothing is symmetric."""
    fn, base, scale = (parameter.data for parameter in module.parameters())
    fn.copy_(randn(*fn.shape, seed=seed, scale=0.2))
    base.copy_(randn(*base.shape, seed=seed + 1))
    scale.copy_(torch.tensor([0.7, 1.1, 0.9])[: len(scale)])
    return module


def connection(n=4, c=12, seed=0, **options) -> nn.HyperConnection:
    return drawn(nn.HyperConnection(c, n, **options), seed)


def head(n=4, c=12, seed=0, **options) -> nn.HyperHead:
    return drawn(nn.HyperHead(c, n, **options), seed)


def test_modules_are_the_functions_with_their_parameters():
    options = {
        "sinkhorn_iters": 3, "eps": 1e-3, "norm_eps": 1e-2, "post_mult": 1.5, "pre_eps": 0.5,
        "post_eps": 0.25, "comb_order": "oi", "eps_outside": True,
    }  # fmt: skip
    x, module = randn(7, 4, 12, seed=5), connection(**options)
    fn, base, scale = module.parameters()
    y, post, comb, _ = hc_site(x, fn, scale, base, **options)
    assert_equal(module(x), (post, comb, y))
    module = head(eps=0.5, norm_eps=1e-2)
    fn, base, scale = module.parameters()
    assert torch.equal(module(x), hc_head(x, fn, scale, base, eps=0.5, norm_eps=1e-2))
    assert "hc_mult=4, eps=0.5, norm_eps=0.01" in repr(module)
    assert "sinkhorn_iters=20, eps=1e-06" in repr(connection())


def test_a_boundary_is_the_function_with_its_parameters():
    torch.manual_seed(0)
    boundary, connection = nn.HyperBoundary(12, 4, 5), nn.HyperConnection(12, 4, 5)
    connection.load_state_dict(boundary.state_dict())
    x, f = randn(2, 5, 4, 12), randn(2, 5, 12, seed=1)
    post, comb, pre = randn(2, 5, 4, seed=2), randn(2, 5, 4, 4, seed=3), randn(2, 5, 4, seed=4)
    expected = hc_boundary(f, x, post, comb, pre, boundary.fn, boundary.scale, boundary.base, 5)
    assert_equal(boundary(f, x, post, comb, pre), expected)
    own = boundary(f, x, post, comb)
    assert_equal((own.post, own.comb, own.y), connection(own.residual))


def test_names_shapes_and_initial_values():
    torch.manual_seed(0)
    module = nn.HyperConnection(64, 3)
    shapes = {"fn": (15, 192), "base": (15,), "scale": (3,)}
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == shapes
    assert list(dict(module.named_parameters())) == list(shapes)
    assert 0.018 < module.fn.std() < 0.022
    assert abs(module.fn.mean()) < 0.002
    assert torch.equal(module.base, torch.zeros(15))
    assert torch.equal(module.scale, torch.ones(3))
    module = nn.HyperHead(64, 16, initializer_range=0.5)
    shapes = {"hc_fn": (16, 1024), "hc_base": (16,), "hc_scale": (1,)}
    assert {name: tuple(t.shape) for name, t in module.state_dict().items()} == shapes
    assert 0.49 < module.hc_fn.std() < 0.51
    assert torch.equal(module.hc_base, torch.zeros(16))
    assert torch.equal(module.hc_scale, torch.ones(1))


CONVERSIONS = {
    "to bfloat16": lambda m: m.to(torch.bfloat16),
    "bfloat16()": lambda m: m.bfloat16(),
    "half()": lambda m: m.half(),
    "to a device and half": lambda m: m.to("cpu", torch.float16),
    "to a tensor's": lambda m: m.to(torch.zeros(1, dtype=torch.bfloat16)),
    "float()": lambda m: m.float(),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("make", [connection, head])
def test_conversions_leave_parameters_and_gradients_in_float32(make, conversion):
    module = make()
    model = torch.nn.Sequential(torch.nn.Linear(12, 12), torch.nn.Sequential(module))
    parameters = list(module.parameters())
    for parameter in parameters:
        parameter.grad = randn(*parameter.shape, seed=3)
    before = [t.clone() for p in parameters for t in (p.detach(), p.grad)]
    CONVERSIONS[conversion](model)
    assert conversion == "float()" or model[0].weight.dtype in NARROW
    assert [id(p) for p in module.parameters()] == [id(p) for p in parameters]
    # 24 bits, not 8 of them in 24
    assert_equal([t for p in parameters for t in (p.detach(), p.grad)], before)


@pytest.mark.parametrize("make", [connection, head])
def test_float64_is_followed_and_comes_back(make):
    module = make().double()
    assert {p.dtype for p in module.parameters()} == {torch.float64}
    assert {p.dtype for p in module.half().parameters()} == {torch.float32}


def test_made_under_a_default_device(monkeypatch):
    # torch.device as a context knows torch.empty, not the one that the tests put there
    monkeypatch.undo()
    torch.utils._device._device_constructors.cache_clear()
    with torch.device("meta"):
        made = nn.HyperConnection(8), nn.HyperHead(8)
    torch.utils._device._device_constructors.cache_clear()
    assert {p.device.type for module in made for p in module.parameters()} == {"meta"}


def test_made_under_a_narrow_default_dtype_and_without_data():
    torch.set_default_dtype(torch.bfloat16)
    try:
        modules = [nn.HyperConnection(8), nn.HyperHead(8)]
    finally:
        torch.set_default_dtype(torch.float32)
    for module in modules:
        assert {p.dtype for p in module.parameters()} == {torch.float32}
        kind = type(module)
        bare = kind(8, device="meta")
        assert {p.device.type for p in bare.parameters()} == {"meta"}
        bare.bfloat16().to_empty(device="cpu").reset_parameters()
        assert {(p.dtype, p.device.type) for p in bare.parameters()} == {(torch.float32, "cpu")}
        bare.load_state_dict(module.state_dict())
        x = randn(2, 4, 8)
        expected = module(x)
        together = isinstance(expected, tuple)
        assert_equal(bare(x) if together else [bare(x)], expected if together else [expected])


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [*NARROW, torch.float32], ids=str)
@pytest.mark.parametrize("make", [connection, head])
def test_a_narrow_checkpoint_is_loaded_into_float32(make, dtype, assign):
    source, module = make(), make(seed=50)
    state = {name: t.to(dtype) for name, t in source.state_dict().items()}
    model = torch.nn.ModuleDict({"hc": module})
    model.load_state_dict({f"hc.{name}": t for name, t in state.items()}, assign=assign)
    assert_equal(module.state_dict().values(), [t.float() for t in state.values()])
    assert {t.dtype for t in state.values()} == {dtype}
    with pytest.raises(RuntimeError, match=r"Missing key.*hc\."):
        model.load_state_dict({}, assign=assign)


REFUSED = {
    "hidden size is a float": (lambda: nn.HyperConnection(8.0), TypeError, "hidden_size is 8.0; pass an int"),
    "hidden size is 0": (lambda: nn.HyperHead(0), ValueError, "hidden_size is 0; pass an int of at least 1"),
    "no streams": (lambda: nn.HyperHead(8, 0), ValueError, "hc_mult is 0; pass an int from 1 to 16"),
    "17 streams": (lambda: nn.HyperConnection(8, 17), ValueError, "hc_mult is 17; pass an int from 1 to 16"),
    "streams are a bool": (lambda: nn.HyperConnection(8, True), TypeError, "hc_mult is True; pass an int"),
    "-1 iterations": (lambda: nn.HyperConnection(8, 4, -1), ValueError, "sinkhorn_iters is -1; pass an int"),
    "eps of the head": (lambda: nn.HyperHead(8, eps=math.inf), ValueError, "eps is inf; pass a finite float"),
    "eps of the norm": (lambda: nn.HyperHead(8, norm_eps=0.0), ValueError, "norm_eps is 0.0; pass"),
    "precision": (lambda: nn.HyperHead(8, precision="x"), ValueError, "precision is 'x'; use one of"),
    "implementation": (lambda: nn.HyperHead(8, implementation="x"), ValueError, "implementation is 'x'; use"),
    "streams last": (lambda: connection()(torch.zeros(2, 12, 4)), ValueError,
                     r"streams has shape \(2, 12, 4\); pass \(\.\.\., 4, 12\), streams before features$"),
    "not expanded": (lambda: connection()(torch.zeros(2, 12)), ValueError,
                     r"streams has shape \(2, 12\); .*: hc_expand\(h, 4\) makes them of one hidden state$"),
    "merged streams": (lambda: head()(torch.zeros(2, 48)), ValueError, r"shape \(2, 48\), as merged"),
    "deviation": (lambda: nn.HyperHead(8, initializer_range=-1.0), ValueError, "initializer_range is -1.0"),
    "no number": (lambda: nn.HyperConnection(8, initializer_range="x"), TypeError, "_range is 'x'; pass"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


def test_what_is_wrong_with_a_boundary_is_named_and_not_the_projection():
    f, x, post, comb = randn(3, 5, 8), randn(3, 5, 4, 8), randn(3, 5, 4), randn(3, 5, 4, 4)
    parameters = randn(24, 32), torch.ones(3), torch.zeros(24)
    swapped = r"f has shape \(3, 5, 4, 8\); .* pass \(\.\.\., C\), \(3, 8\): f comes first, then the streams"
    with pytest.raises(ValueError, match=swapped):
        nn.HyperBoundary(8)(x, f, post, comb)
    with pytest.raises(ValueError, match=swapped):
        hc_boundary(x, f, post, comb, None, *parameters)
    with pytest.raises(ValueError, match=r"streams has shape \(3, 5, 4, 8\); pass \(\.\.\., 4, 16\)"):
        nn.HyperBoundary(16)(f, x, post, comb)
    with pytest.raises(ValueError, match=r"streams has shape \(3, 5, 4, 8\); pass \(\.\.\., 2, 8\)"):
        nn.HyperBoundary(8, 2)(f, x, post, comb)
    with pytest.raises(ValueError, match=r"post has shape \(3, 5, 5\)"):
        nn.HyperBoundary(8)(f, x, randn(3, 5, 5), comb)
    with pytest.raises(ValueError, match=r"pre_next has shape \(4, 4\); for these streams pass \(3, 5, 4\)"):
        hc_boundary(f, x, post, comb, randn(4, 4), *parameters)
    with pytest.raises(ValueError, match=r"pre_next has shape .*: convert with .squeeze\(-1\)"):
        hc_boundary(f, x, post, comb, post.unsqueeze(-1), *parameters)
    with pytest.raises(TypeError, match=r"no enter; .* boundary\(f, streams, post, comb, pre\).* hc_coeffs"):
        nn.HyperBoundary(8).enter(x)


class Entered(torch.nn.Module):
    """What `enter` of a site, or the call of a boundary, returns."""

    def __init__(self, owner):
        super().__init__()
        self.owner = owner

    def forward(self, *given):
        return self.owner.enter(*given) if len(given) == 1 else self.owner(*given)


@pytest.mark.parametrize("kind", [nn.HyperConnection, nn.HyperBoundary])
def test_an_exported_program_that_returns_named_results_is_saved_and_loaded(kind):
    x, f, post, comb = randn(3, 4, 16), randn(3, 16), randn(3, 4), randn(3, 4, 4)
    given = (x,) if kind is nn.HyperConnection else (f, x, post, comb)
    module, file = Entered(kind(16, 4)).requires_grad_(False), io.BytesIO()
    torch.export.save(torch.export.export(module, given), file)
    file.seek(0)
    expected, results = module(*given), torch.export.load(file).module()(*given)
    assert type(results) is type(expected)
    assert_equal(results, expected)
