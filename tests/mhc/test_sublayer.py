"""nn.HyperSublayer: the bits of the calls it makes, DeepSeek-V4.1's order, and how models use it."""

from __future__ import annotations

import copy

import pytest
import torch
from autograd_calls import assert_equal, randn
from mhc_layers import Layers, checkpointed

from helion_sinkhorn import hc_expand, hc_post, hc_pre, nn, recompute_streams
from helion_sinkhorn.mhc.sublayer import Pending

N, C = 4, 12


class Attention(torch.nn.Module):
    """A sublayer of two inputs and a keyword, whose result is a tuple."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(C, C)

    def forward(self, y, position, *, factor=1.0):
        weights = (self.linear(y) + position).tanh()
        return weights * factor, weights, None


def drawn(module: torch.nn.Module) -> torch.nn.Module:
    for k, parameter in enumerate(module.parameters()):
        parameter.data.copy_(randn(*parameter.shape, seed=k, scale=0.3) + (parameter.dim() == 1))
    return module


def gradients(results, inputs, model):
    """The gradients of the floating results, by random upstreams."""
    results = [y for y in results if y is not None]
    upstream = [randn(*y.shape, seed=20 + k, dtype=y.dtype) for k, y in enumerate(results)]
    return torch.autograd.grad(results, [*inputs, *model.parameters()], upstream)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("order", ["io", "oi"])
def test_v4_has_the_bits_of_the_calls_by_hand(order, dtype):
    layer = drawn(nn.HyperSublayer(Attention(), C, N, comb_order=order, sinkhorn_iters=3)).to(dtype)
    x, position = randn(2, 5, N, C, dtype=dtype).requires_grad_(), randn(C, dtype=dtype).requires_grad_()

    def by_hand():
        y, post, comb, residual = layer.connection.enter(x, y_norm=layer.norm)
        f, weights, nothing = layer.sublayer(y, position, factor=0.5)
        return hc_post(f, residual, post, comb, comb_order=order), weights, nothing

    outputs, expected = layer(x, position, factor=0.5), by_hand()
    assert type(outputs) is tuple
    assert outputs[2] is None
    assert_equal(outputs[:2], expected[:2])
    assert_equal(*(gradients(results, (x, position), layer) for results in (outputs, expected)))
    # other arguments, other results: they reach the sublayer
    assert not torch.equal(layer(x, position)[0], outputs[0])
    assert layer.connection.fn.dtype == torch.float32


def chain(count=3, delayed=True, **options):
    return Layers(count, C, N, delayed=delayed, **options)


class ByHand(Layers):
    """The same in V4.1's form by HyperBoundary."""

    def forward(self, h):
        x = hc_expand(h, self.n)
        waiting = None, x, None, None, torch.eye(self.n)[0].expand(x.shape[:-1])
        for layer in self.layers:
            y, pre, post, comb, x = layer.connection(*waiting, y_norm=layer.norm)
            waiting = layer.sublayer(y), x, post, comb, pre
        return hc_pre(hc_post(*waiting[:4]), waiting[4])


def step(model, h):
    h = h.detach().requires_grad_()
    result = model(h)
    return result.detach(), *gradients([result], [h], model)


@pytest.mark.parametrize("delayed_pre", [False, True])
def test_a_norm_with_hooks_or_of_another_kind_is_called(delayed_pre):
    class Own(torch.nn.RMSNorm):
        pass

    h, calls = randn(2, 5, C), []
    for norm in (torch.nn.RMSNorm(C, eps=1e-6), Own(C, eps=1e-6)):
        model = drawn(chain(2, delayed_pre, norm=norm))
        if type(norm) is Own:
            expected = step(model, h)
            norm.__class__ = torch.nn.RMSNorm
        else:
            handle = norm.register_forward_hook(lambda *given: calls.append(given))
            expected = step(model, h)
            assert len(calls) == 2
            handle.remove()
        torch.testing.assert_close(step(model, h), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_v4_1_has_the_bits_of_the_calls_by_hand(dtype):
    model, by_hand = drawn(chain()).to(dtype), ByHand(3, C, N, delayed=True).to(dtype)
    by_hand.load_state_dict(model.state_dict())
    h = randn(2, 5, C, dtype=dtype)
    assert_equal(step(model, h), step(by_hand, h))


def test_the_state_dict_and_the_norm():
    layer = nn.HyperSublayer(torch.nn.Linear(C, C, bias=False), C, norm_eps=1e-3)
    names = ["connection.fn", "connection.base", "connection.scale", "norm.weight", "sublayer.weight"]
    assert list(layer.state_dict()) == names
    assert isinstance(layer.norm, torch.nn.RMSNorm)
    assert layer.norm.eps == 1e-3
    assert list(nn.HyperSublayer(torch.nn.Linear(C, C), C, delayed_pre=True).state_dict())[:4] == names[:4]
    bare = nn.HyperSublayer(torch.nn.Identity(), C, 3, norm=torch.nn.Identity(), device="meta")
    assert {name: tuple(t.shape) for name, t in bare.state_dict().items()} == {
        "connection.fn": (15, 3 * C), "connection.base": (15,), "connection.scale": (3,),
    }  # fmt: skip
    assert {t.device.type for t in bare.state_dict().values()} == {"meta"}
    other = nn.HyperConnection(C)
    other.load_state_dict({name.split(".")[1]: layer.state_dict()[name] for name in names[:3]})


@pytest.mark.parametrize("delayed", [False, True])
def test_compiled_checkpointed_copied_and_with_streams_made_again(delayed):
    model, h = drawn(chain(delayed=delayed)), randn(2, 3, C)
    expected = step(model, h)
    torch._dynamo.reset()
    assert_equal(step(torch.compile(model, fullgraph=True, backend="aot_eager"), h), expected)
    assert_equal(step(copy.deepcopy(model), h), expected)
    with recompute_streams(every=2):
        assert_equal(step(model, h), expected)
    checkpointed(model.layers)
    assert_equal(step(model, h), expected)


def test_a_tuple_of_one_stays_a_tuple_and_no_tensor_becomes_one():
    x, sublayer = randn(2, N, C), torch.nn.Identity()
    sublayer.register_forward_hook(lambda module, given, y: (y,))
    for delayed in (False, True):
        kind = Pending if delayed else torch.Tensor
        (new,) = nn.HyperSublayer(sublayer, C, delayed_pre=delayed)(x)
        assert type(new) is kind
        assert type(nn.HyperSublayer(torch.nn.Identity(), C, delayed_pre=delayed)(x)) is kind


def of_layer(*given, **options):
    return nn.HyperSublayer(torch.nn.Identity(), C, **options)(*given)


NARROW = Pending(*(randn(2, *shape).bfloat16() for shape in ((C,), (N, C), (N,), (N, N), (N,))))
REFUSED = {
    "a function": (lambda: nn.HyperSublayer(torch.tanh, C), TypeError, "sublayer is a builtin_f.*; pass"),
    "a norm": (lambda: nn.HyperSublayer(torch.nn.Identity(), C, norm="rms"), TypeError, "norm is a str"),
    "form": (lambda: of_layer(delayed_pre=1), TypeError, "delayed_pre is 1; pass True or False"),
    "size": (lambda: nn.HyperSublayer(torch.nn.Identity(), 0), ValueError, "hidden_size is 0; pass an int"),
    "one stream": (lambda: of_layer(randn(2, C)), ValueError, r"streams has shape \(2, 12\).*hc_expand"),
    "one stream, V4.1": (lambda: of_layer(randn(C), delayed_pre=True), ValueError, "has shape.*hc_expand"),
    "no tensor, V4.1": (lambda: of_layer(None, delayed_pre=True), TypeError, "streams is a NoneType; pass"),
    "the other form": (lambda: of_layer(NARROW), TypeError, "x is a Pending; pass a torch.Tensor"),
    "rounded": (lambda: of_layer(NARROW, delayed_pre=True), ValueError,
                r"comb between two sublayers is torch.bfloat16; .*float32: .*cast_forward_inputs=False"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "said"), REFUSED.values(), ids=REFUSED)
def test_refused_with_what_to_do(call, kind, said):
    with pytest.raises(kind, match=said):
        call()


def test_a_boundary_with_half_an_update_is_refused():
    with pytest.raises(TypeError, match=r"f is a NoneType; pass a torch\.Tensor"):
        nn.HyperBoundary(C)(None, randn(2, N, C), randn(2, N), randn(2, N, N))


def of_dtensors(mesh, delayed: bool) -> dict:
    """A chain of layers whose parameters are whole in every process, and whose tokens are not."""
    from torch.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor

    model, h = drawn(chain(delayed=delayed)), randn(4, 3, C).requires_grad_()
    expected = model(h)
    upstream = randn(*expected.shape, seed=30)
    truth = [expected, *torch.autograd.grad(expected, [h, *model.parameters()], upstream)]
    spread = distribute_module(model, mesh)
    streams, upstream = (distribute_tensor(t.detach(), mesh, [Shard(0)]) for t in (h, upstream))
    result = spread(streams.requires_grad_())
    sharded = [result, *torch.autograd.grad(result, [streams, *spread.parameters()], upstream)]
    whole = [t.redistribute(placements=[Replicate()]).to_local() for t in sharded]
    return {
        "placements": [str(t.placements[0]) for t in sharded],
        "apart": [float((a - b).abs().max() / b.abs().max()) for a, b in zip(whole, truth, strict=True)],
    }


def both_of_dtensors(mesh) -> list[dict]:
    return [of_dtensors(mesh, delayed) for delayed in (False, True)]


@pytest.mark.parametrize("delayed", [False, True])
def test_tokens_that_are_sharded(on_two_processes, delayed):
    for outcomes in on_two_processes(both_of_dtensors):
        outcome = outcomes[delayed]
        assert outcome["placements"][:2] == ["S(0)"] * 2
        # the gradient of a parameter is a sum over the tokens of both
        assert set(outcome["placements"][2:]) <= {"P(sum)", "R"}
        assert max(outcome["apart"]) < 1e-5
