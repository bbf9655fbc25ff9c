"""The torch operators of hc_pre: autograd, compilers, functorch, autocast, DTensor."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import assert_batched_gradients, assert_equal
from hc_streams import pre_inputs, pre_results
from sharded import CASES, COMMUNICATION, sharded_results
from targets import INDUCTOR_BY_NIGHT
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_pre, reference

FORWARD = torch.ops.helion_sinkhorn.hc_pre.default
BACKWARD = torch.ops.helion_sinkhorn.hc_pre_backward.default
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "one token": lambda t: t[0, 0],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "empty": lambda t: t[:, :0],
}


def inputs(*lead, **options):
    return pre_inputs(*lead, c=16, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout):
    x, pre, dy = (LAYOUTS[layout](t) for t in inputs(2, 5))
    leaves = [t.detach().requires_grad_() for t in (x, pre)]
    torch.library.opcheck(FORWARD, (*leaves, "pytorch"))
    torch.library.opcheck(BACKWARD, (dy, x, pre, "pytorch"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("coefficients", [torch.float32, torch.bfloat16], ids=str)
def test_fakes_have_the_metadata_of_what_runs(layout, dtype, coefficients):
    given = [LAYOUTS[layout](t) for t in inputs(2, 5, dtype=dtype, coefficients=coefficients)]

    def both(x, pre, dy):
        return FORWARD(x, pre, "pytorch"), *BACKWARD(dy, x, pre, "pytorch")

    found = both(*given)
    with FakeTensorMode() as mode:
        fake = both(*[mode.from_tensor(t) for t in given])
    for a, b in zip(found, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_meta_device():
    found = pre_results(*[t.to("meta") for t in inputs(2, 5, dtype=torch.bfloat16)])
    assert [tuple(t.shape) for t in found.values()] == [(2, 5, 16), (2, 5, 4, 16), (2, 5, 4)]
    assert {t.device.type for t in found.values()} == {"meta"}
    assert [t.dtype for t in found.values()] == [torch.bfloat16] * 2 + [torch.float32]


def test_the_operator_is_what_the_function_runs():
    x, pre, dy = inputs(3, 7)
    found = FORWARD(x, pre, "pytorch"), *BACKWARD(dy, x, pre, "pytorch")
    assert_equal(found, pre_results(x, pre, dy).values())


def test_compiled_without_recompiling_for_other_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(hc_pre, fullgraph=True, backend=counter)
    for tokens in (3, 5, 8, 13):
        given = inputs(tokens, seed=tokens)
        for t in given[:2]:
            torch._dynamo.mark_dynamic(t, 0)
        leaves = [t.requires_grad_() for t in given[:2]]
        y = compiled(*leaves)
        found = y.detach(), *torch.autograd.grad(y, leaves, given[2])
        assert_equal(found, pre_results(*given).values())
    assert counter.frame_count == 1
    with torch.no_grad():
        assert torch.equal(compiled(*given[:2]), hc_pre(*given[:2]))


@INDUCTOR_BY_NIGHT
def test_compiled_by_inductor():
    given = inputs(6)

    def f(x, pre):
        return hc_pre(x * 2, pre.sigmoid()).sin()

    torch._dynamo.reset()
    found, plain = pre_results(*given, f=torch.compile(f, fullgraph=True)), pre_results(*given, f=f)
    for name, t in plain.items():
        torch.testing.assert_close(found[name], t, rtol=1e-5, atol=1e-5)


class Collapse(torch.nn.Module):
    """A module of a model: weights that are parameters, and a call."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.tensor([0.5, -1.0, 2.0, 0.25]))

    def forward(self, x):
        return hc_pre(x, self.weights.expand(x.shape[:-1]))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_runs_at_other_token_counts(strict):
    tokens, module = torch.export.Dim("tokens", min=2), Collapse()
    given = (inputs(2, 3)[0],)
    program = torch.export.export(module, given, dynamic_shapes=({1: tokens},), strict=strict)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for count in (2, 7):
        x = inputs(2, count, seed=count)[0]
        assert torch.equal(program.module()(x), module(x))


@pytest.mark.parametrize("dims", [(0, 0), (1, 0), (-1, -1), (0, None), (None, 1), (2, 2)], ids=str)
def test_vmap(dims):
    each = [inputs(2, 5, seed=k)[:2] for k in range(3)]
    stacked = [
        each[0][k] if d is None else torch.stack([one[k] for one in each], d) for k, d in enumerate(dims)
    ]
    found = torch.vmap(hc_pre, in_dims=dims)(*stacked)
    expected = [hc_pre(*(each[0][k] if d is None else one[k] for k, d in enumerate(dims))) for one in each]
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("shared", [False, True], ids=["weights of each", "shared weights"])
def test_gradients_of_each_sample(shared):
    each = [inputs(5, seed=k) for k in range(3)]
    x, pre, dy = (torch.stack(parts) for parts in zip(*each, strict=True))
    pre = pre[0] if shared else pre

    def loss(x, pre, dy):
        return (hc_pre(x, pre) * dy).sum()

    gradient = torch.func.grad(loss, argnums=(0, 1))
    found = torch.vmap(gradient, in_dims=(0, None if shared else 0, 0))(x, pre, dy)
    rows = [pre_results(x[k], pre if shared else pre[k], dy[k]) for k in range(3)]
    assert_equal(found, [torch.stack([row[name] for row in rows]) for name in ("dx", "dpre")])


def test_batched_gradients_and_jacobian():
    x, pre, _ = inputs(2)
    assert_batched_gradients(hc_pre, x, pre)
    one = x[0].double(), pre[0].double()
    jacobian = torch.func.jacrev(hc_pre, argnums=(0, 1))(*one)
    expected = torch.func.jacrev(reference.hc_pre, argnums=(0, 1))(*one)
    for a, b in zip(jacobian, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_no_bit(dtype):
    given = inputs(3, 5, dtype=dtype)
    plain = pre_results(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert_equal(pre_results(*given).values(), plain.values())
        torch._dynamo.reset()
        compiled = torch.compile(hc_pre, fullgraph=True, backend="aot_eager")
        assert_equal(pre_results(*given, f=compiled).values(), plain.values())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    x, pre, dy = inputs(3, 5)
    leaves = [t.clone().requires_grad_() for t in (x, pre)]
    y = checkpoint(hc_pre, *leaves, use_reentrant=use_reentrant)
    y.backward(dy)
    assert_equal((y.detach(), *(t.grad for t in leaves)), pre_results(x, pre, dy).values())


def test_only_the_arguments_are_kept():
    leaves = [t.requires_grad_() for t in inputs(3, 5)[:2]]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        hc_pre(*leaves)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in leaves}


def test_second_derivatives_and_forward_mode_say_what_to_do():
    x, pre, dy = inputs(2)
    leaves = [t.requires_grad_() for t in (x, pre)]
    dx, _ = torch.autograd.grad(hc_pre(*leaves), leaves, dy, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"no second derivative.*helion_sinkhorn\.reference\.hc_pre"
    ):
        dx.sum().backward()
    for k in range(2):
        given = [t.detach() for t in (x, pre)]

        def f(t, k=k, given=given):
            return hc_pre(*given[:k], t, *given[k + 1 :])

        with pytest.raises(NotImplementedError, match=r"no forward-mode derivative.*reference\.hc_pre"):
            torch.func.jvp(f, (given[k],), (given[k],))


def distributed(mesh, placement):
    x, pre, dy = inputs(5, 4)
    return sharded_results(mesh, placement, hc_pre, (x, pre), dy, ())


def every_case(mesh) -> dict:
    return {name: distributed(mesh, placement) for name, placement in CASES.items()}


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    return on_two_processes(every_case)


@pytest.mark.parametrize("case", CASES)
def test_distributed_equals_one_process(ranks, case):
    for found in ranks:
        assert found[case]["equal"] == [True] * 3


@pytest.mark.parametrize("case", COMMUNICATION)
def test_tokens_shard_without_communication_and_streams_are_gathered(ranks, case):
    for found in ranks:
        assert (sum(found[case]["communication"]) > 0) == COMMUNICATION[case]
        if not COMMUNICATION[case]:
            assert found[case]["placements"] == [found[case]["given"]] * 3
