"""The torch operators of hc_post: autograd, compilers, functorch, autocast, DTensor."""

from __future__ import annotations

import functools

import pytest
import torch
from autograd_calls import assert_batched_gradients, assert_equal
from hc_streams import post_inputs, post_results
from sharded import CASES, COMMUNICATION, sharded_results
from targets import INDUCTOR_BY_NIGHT
from torch._subclasses import FakeTensorMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import hc_boundary, hc_post, reference

FORWARD = torch.ops.helion_sinkhorn.hc_post.default
BACKWARD = torch.ops.helion_sinkhorn.hc_post_backward.default
LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "one token": lambda t: t[0, 0],
    "strided": lambda t: t.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda t: t[:1].expand_as(t),
    "empty": lambda t: t[:, :0],
}
BIAS = 4
"""The argument that belongs to no token."""


def inputs(*lead, **options):
    return post_inputs(*lead, c=16, **options)


def laid_out(layout, tensors):
    return [t if k == BIAS else LAYOUTS[layout](t) for k, t in enumerate(tensors)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout):
    *given, grad = laid_out(layout, inputs(2, 5))
    leaves = [t.detach().requires_grad_() for t in given]
    torch.library.opcheck(FORWARD, (*leaves, "io", "pytorch"))
    torch.library.opcheck(BACKWARD, (grad, *given, "io", "pytorch"))
    if layout == "contiguous":
        torch.library.opcheck(FORWARD, (*leaves[:BIAS], None, "oi", "pytorch"))
        torch.library.opcheck(BACKWARD, (grad, *given[:BIAS], None, "oi", "pytorch"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dtype", "f_dtype"),
    [(torch.float32, torch.bfloat16), (torch.bfloat16, torch.float32), (torch.float64, torch.float64)],
    ids=str,
)
def test_fakes_have_the_metadata_of_what_runs(layout, dtype, f_dtype):
    options = {"dtype": dtype, "f_dtype": f_dtype, "coefficients": torch.bfloat16}
    given = laid_out(layout, inputs(2, 5, **options))

    def both(*tensors):
        *arguments, grad = tensors
        constants = "io", "pytorch"
        return FORWARD(*arguments, *constants), *BACKWARD(grad, *arguments, *constants)

    found = both(*given)
    with FakeTensorMode() as mode:
        fake = both(*[mode.from_tensor(t) for t in given])
    for a, b in zip(found, fake, strict=True):
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)


def test_meta_device():
    found = post_results(*[t.to("meta") for t in inputs(2, 5, dtype=torch.bfloat16)])
    shapes = [(2, 5, 4, 16), (2, 5, 16), (2, 5, 4, 16), (2, 5, 4), (2, 5, 4, 4), (16,)]
    assert [tuple(t.shape) for t in found.values()] == shapes
    assert {t.device.type for t in found.values()} == {"meta"}
    assert [t.dtype for t in found.values()] == [torch.bfloat16] * 3 + [torch.float32] * 3


@pytest.mark.parametrize("comb_order", ["io", "oi"])
def test_the_operator_is_what_the_function_runs(comb_order):
    *given, grad = inputs(3, 7)
    constants = comb_order, "pytorch"
    found = FORWARD(*given, *constants), *BACKWARD(grad, *given, *constants)
    plain = post_results(*given, grad, comb_order=comb_order)
    assert_equal((*found, found[1].sum((0, 1))), plain.values())


def test_compiled_without_recompiling_for_other_tokens():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(hc_post, fullgraph=True, backend=counter)
    for tokens in (3, 5, 8, 13):
        *given, grad = inputs(tokens, seed=tokens)
        for t in given[:BIAS]:
            torch._dynamo.mark_dynamic(t, 0)
        leaves = [t.requires_grad_() for t in given]
        out = compiled(*leaves)
        found = out.detach(), *torch.autograd.grad(out, leaves, grad)
        assert_equal(found, post_results(*given, grad).values())
    assert counter.frame_count == 1
    with torch.no_grad():
        assert torch.equal(compiled(*given), hc_post(*given))


@INDUCTOR_BY_NIGHT
def test_compiled_by_inductor():
    given = inputs(6, has_bias=False)

    def f(f, x, post, comb, bias):
        return hc_post(f, x * 2, post.sigmoid(), comb, bias, comb_order="oi").sin()

    torch._dynamo.reset()
    found, plain = post_results(*given, call=torch.compile(f, fullgraph=True)), post_results(*given, call=f)
    for name, t in plain.items():
        torch.testing.assert_close(found[name], t, rtol=1e-5, atol=1e-5)


class Expand(torch.nn.Module):
    """A module of a model: weights and a bias that are parameters, and a call."""

    def __init__(self):
        super().__init__()
        _, _, post, comb, bias, _ = inputs()
        self.post, self.comb, self.bias = map(torch.nn.Parameter, (post, comb, bias))

    def forward(self, f, x):
        lead = f.shape[:-1]
        return hc_post(f, x, self.post.expand(*lead, 4), self.comb.expand(*lead, 4, 4), self.bias)


@pytest.mark.parametrize("strict", [False, True])
def test_exported_program_runs_at_other_token_counts(strict):
    tokens, module = torch.export.Dim("tokens", min=2), Expand()
    shapes = {1: tokens}, {1: tokens}
    program = torch.export.export(module, tuple(inputs(2, 3)[:2]), dynamic_shapes=shapes, strict=strict)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    for count in (2, 7):
        given = inputs(2, count, seed=count)[:2]
        assert torch.equal(program.module()(*given), module(*given))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "dims",
    [(0, 0, 0, 0, None), (1, 2, 0, -1, None), (None, 0, None, 0, None), (0, None, 0, None, 0), (0,) * 5,
     (None, None, None, None, 0), (0, 0, 0, 0, 1)],
    ids=str,
)  # fmt: skip
def test_vmap(dims, dtype):
    each = [inputs(2, 5, seed=k, dtype=dtype)[:5] for k in range(3)]
    stacked = [
        each[0][k] if d is None else torch.stack([one[k] for one in each], d) for k, d in enumerate(dims)
    ]
    found = torch.vmap(hc_post, in_dims=dims)(*stacked)
    expected = [hc_post(*(each[0][k] if d is None else one[k] for k, d in enumerate(dims))) for one in each]
    assert torch.equal(found, torch.stack(expected))


@pytest.mark.parametrize("has_bias", [True, False])
def test_vmap_over_nothing(has_bias):
    given = [t[None][:0] for t in inputs(2, 5)[: 4 + has_bias]]
    assert torch.vmap(hc_post)(*given).shape == (0, *inputs(2, 5)[1].shape)


def test_vmap_without_a_bias():
    each = [inputs(2, 5, seed=k, has_bias=False)[:4] for k in range(3)]
    found = torch.vmap(hc_post)(*[torch.stack(parts) for parts in zip(*each, strict=True)])
    assert torch.equal(found, torch.stack([hc_post(*one) for one in each]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shared", [False, True], ids=["a bias of each", "a shared bias"])
def test_gradients_of_each_sample(shared, dtype):
    """dbias of each sample is of its tokens alone, also where the bias is shared."""
    each = [inputs(5, seed=k, dtype=dtype) for k in range(3)]
    *given, grad = (torch.stack(parts) for parts in zip(*each, strict=True))
    if shared:
        given[BIAS] = given[BIAS][0]

    def loss(f, x, post, comb, bias, grad):
        return (hc_post(f, x, post, comb, bias).float() * grad.float()).sum()

    gradient = torch.func.grad(loss, argnums=tuple(range(5)))
    dims = (0, 0, 0, 0, None if shared else 0, 0)
    found = torch.vmap(gradient, in_dims=dims)(*given, grad)
    rows = [post_results(*one[:BIAS], given[BIAS] if shared else one[BIAS], one[5]) for one in each]
    for t, name in zip(found, ("df", "dx", "dpost", "dcomb", "dbias"), strict=True):
        assert torch.equal(t, torch.stack([row[name] for row in rows])), name
    assert (found[BIAS][0] - found[BIAS][1]).abs().max() > 1e-2


def test_batched_gradients_and_jacobian():
    *given, _ = inputs(2)
    assert_batched_gradients(hc_post, *given)
    one = [t.double() if k == BIAS else t[0].double() for k, t in enumerate(given)]
    jacobian = torch.func.jacrev(hc_post, argnums=tuple(range(5)))(*one)
    expected = torch.func.jacrev(reference.hc_post, argnums=tuple(range(5)))(*one)
    for a, b in zip(jacobian, expected, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_changes_no_bit(dtype):
    given = inputs(3, 5, dtype=dtype)
    plain = post_results(*given)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16
        assert_equal(post_results(*given).values(), plain.values())
        torch._dynamo.reset()
        compiled = torch.compile(hc_post, fullgraph=True, backend="aot_eager")
        assert_equal(post_results(*given, call=compiled).values(), plain.values())


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    *given, grad = inputs(3, 5)
    leaves = [t.clone().requires_grad_() for t in given]
    out = checkpoint(hc_post, *leaves, use_reentrant=use_reentrant)
    out.backward(grad)
    assert_equal((out.detach(), *(t.grad for t in leaves)), post_results(*given, grad).values())


def test_only_the_arguments_are_kept():
    leaves = [t.requires_grad_() for t in inputs(3, 5)[:5]]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        hc_post(*leaves)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in leaves}


def test_no_sum_over_tokens_for_a_bias_that_needs_no_gradient():
    from torch.utils._python_dispatch import TorchDispatchMode

    class Sums(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func is torch.ops.aten.sum.dim_IntList
            return func(*args, **(kwargs or {}))

    for needed in (True, False):
        *given, bias, grad = inputs(3)
        out = hc_post(*[t.requires_grad_() for t in given], bias.requires_grad_(needed))
        with Sums() as sums:
            out.backward(grad)
        assert sums.count == needed


def test_second_derivatives_and_forward_mode_say_what_to_do():
    *given, grad = inputs(2)
    leaves = [t.requires_grad_() for t in given]
    df, *_ = torch.autograd.grad(hc_post(*leaves), leaves, grad, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative.*sinkhorn\.reference\.hc_post"):
        df.sum().backward()
    for k in range(5):
        given = [t.detach() for t in leaves]

        def f(t, k=k, given=given):
            return hc_post(*given[:k], t, *given[k + 1 :])

        with pytest.raises(NotImplementedError, match=r"no forward-mode derivative.*reference\.hc_post"):
            torch.func.jvp(f, (given[k],), (given[k],))


def distributed(mesh, placement):
    *given, bias, grad = inputs(5, 4)
    outputs_last = functools.partial(hc_post, comb_order="oi")
    without = sharded_results(mesh, placement, outputs_last, given, grad, ())
    return sharded_results(mesh, placement, hc_post, given, grad, (bias,)) | {"no bias": without["equal"]}


def narrow(mesh, function) -> dict:
    """The same of bfloat16 streams and a float32 bias, whose gradient is summed before it is rounded."""
    f, x, post, comb, bias, grad = inputs(5, 4)
    given = f.bfloat16(), x.bfloat16(), post, comb
    return sharded_results(mesh, CASES["tokens"], function, given, grad.bfloat16(), (bias,))


def boundary(f, x, post, comb, bias):
    """A result of hc_boundary that has all of its gradients."""
    n, rows = x.shape[-2], x.shape[-2] * (x.shape[-2] + 2)
    fn = bias.repeat(rows * n).view(rows, -1)
    found = hc_boundary(f, x, post, comb, None, fn, bias[:3], fn[:, 0], 3, bias=bias)
    coefficients = (found.post.unsqueeze(-1) * found.comb.sum(-1, keepdim=True)).to(x.dtype)
    return found.residual * coefficients + found.y.unsqueeze(-2)


def every_case(mesh) -> dict:
    found = {name: distributed(mesh, placement) for name, placement in CASES.items()}
    return found | {f.__name__: narrow(mesh, f) for f in (hc_post, boundary)}


@pytest.fixture(scope="module")
def ranks(on_two_processes):
    return on_two_processes(every_case)


@pytest.mark.parametrize("case", CASES)
def test_distributed_equals_one_process(ranks, case):
    for found in ranks:
        assert found[case]["equal"][:5] == [True] * 5
        assert found[case]["no bias"] == [True] * 5
        # two partial sums of 10 tokens each, or one of 20
        assert found[case]["apart"][5] < 1e-6


@pytest.mark.parametrize("case", ["hc_post", "boundary"])
def test_distributed_sums_are_of_numbers_that_nothing_rounded(ranks, case):
    for found in ranks:
        assert found[case]["equal"][:5] == [True] * 5
        assert found[case]["apart"][5] < 1e-6


@pytest.mark.parametrize("case", COMMUNICATION)
def test_tokens_shard_without_communication_and_streams_are_gathered(ranks, case):
    for found in ranks:
        assert (sum(found[case]["communication"]) > 0) == COMMUNICATION[case]
        if not COMMUNICATION[case]:
            *tokens, dbias = found[case]["placements"]
            assert tokens == [found[case]["given"]] * 5
            assert dbias.startswith("R" if case == "replicated" else "P")
