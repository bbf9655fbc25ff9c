"""The torch operators of linear attention: what autograd, compilers, functorch and autocast see of them."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from autograd_calls import assert_equal
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from helion_sinkhorn import recurrent_linear_attention, reference
from helion_sinkhorn.lab.linear_attention import model
from helion_sinkhorn.lab.linear_attention.workloads import AttentionWorkload

FORWARD = torch.ops.helion_sinkhorn.recurrent_linear_attention.default
BACKWARD = torch.ops.helion_sinkhorn.recurrent_linear_attention_backward.default


def call(gates="gk", shape=(2, 9, 2, 4, 6), dtype=torch.float32, **options):
    return AttentionWorkload("", *shape, frozenset(), "", gates=gates, dtype=dtype, **options)


def arguments(w, serves="pytorch"):
    x, _, _ = w.make_inputs()
    *vectors, start = [x.get(name) for name in model.TENSORS]
    return *vectors, 0.5, start, w.reverse, x.get("cu_seqlens"), serves


@pytest.mark.parametrize(
    "w",
    [
        call("g g_gamma gk gv", states=True),
        call("", dtype=torch.bfloat16),
        call("g", (1, 6, 1, 3, 2), states=True, reverse=True, lengths=(2, 4)),
        call("gk", (2, 0, 2, 3, 4), states=True),
        call("gv", (0, 5, 2, 3, 4)),
    ],
    ids=["every gate", "bf16", "packed", "no step", "no sequence"],
)
def test_opcheck(w):
    given = arguments(w)
    leaves = [
        x.requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in arguments(w)
    ]
    torch.library.opcheck(FORWARD, given)
    torch.library.opcheck(FORWARD, tuple(leaves))
    _, do, dend = w.make_inputs()
    torch.library.opcheck(BACKWARD, (do, dend, *given))


def value_and_gradients(function, x, do):
    leaves = {name: t.detach().requires_grad_() for name, t in x.items()}
    o, end = function(**leaves)
    return o, end, *torch.autograd.grad((o, end), tuple(leaves.values()), (do, torch.ones_like(end)))


def attend(**tensors):
    return recurrent_linear_attention(**tensors, output_final_state=True)


def test_compiled():
    torch._dynamo.reset()
    x, do, _ = call("g g_gamma gk gv", states=True).make_inputs()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_equal(value_and_gradients(compiled, x, do), value_and_gradients(attend, x, do))


def test_compiled_packed():
    torch._dynamo.reset()
    x, _, _ = call("gk", (1, 9, 2, 3, 4), lengths=(2, 7)).make_inputs()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(**x), attend(**x))


def test_a_scale_that_changes():
    torch._dynamo.reset()
    x, do, _ = call("gk").make_inputs()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for scale in (0.5, 0.25, -3.0, 2):
        own = {"scale": scale}
        found, expected = (
            value_and_gradients(functools.partial(function, **own), x, do) for function in (compiled, attend)
        )
        assert_equal(found, expected)
    with pytest.raises(ValueError, match="scale is inf; pass a finite value"):
        compiled(**x, scale=math.inf)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def under_a_mode(function):
    def run(*tensors):
        with Passing():
            return function(*tensors)

    return run


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"),
        under_a_mode,
        torch.func.functionalize,
        lambda f: lambda q, offsets: torch.vmap(f)(q[None], offsets[None]),
        lambda f: torch.func.grad(lambda q, offsets: f(q, offsets).sum()),
        lambda f: lambda q, offsets: torch.autograd.grad(f(q.requires_grad_(), offsets).sum(), q),
    ],
    ids=["compile", "mode", "functionalize", "vmap", "grad", "autograd"],
)
@pytest.mark.parametrize("offsets", [[-1, 9], [0, 6, 4, 9], [0, 10]])
def test_wrong_offsets_are_noticed_under_transforms(transform, offsets):
    torch._dynamo.reset()
    x, _, _ = call("gk", (1, 9, 2, 3, 4)).make_inputs()
    q = x.pop("q")

    def attend_to(q, offsets):
        return recurrent_linear_attention(q, **x, cu_seqlens=offsets)

    run = transform(attend_to)
    run(q, torch.tensor([0, 2, 9]))
    with pytest.raises(ValueError, match="pass ascending offsets of 0 to T = 9"):
        run(q, torch.tensor(offsets))


def test_fake_offsets_outside_their_mode():
    x, _, _ = call("gk", (1, 9, 2, 3, 4), lengths=(2, 7)).make_inputs()
    mode = FakeTensorMode()
    o, end = attend(**{name: mode.from_tensor(t) for name, t in x.items()})
    assert (o.shape, end.shape) == ((1, 9, 2, 4), (2, 2, 3, 4))


class Attention(torch.nn.Module):
    def forward(self, q, k, v, gk):
        return recurrent_linear_attention(q, k, v, gk=gk)


def test_exported_program_runs_at_other_lengths():
    x, _, _ = call().make_inputs()
    steps = torch.export.Dim("steps", min=2)
    shapes = {name: {1: steps} for name in x}
    program = torch.export.export(Attention(), (), dict(x), dynamic_shapes=shapes, strict=True)
    assert sum(node.target is FORWARD for node in program.graph.nodes) == 1
    other, _, _ = call(shape=(2, 17, 2, 4, 6)).make_inputs()
    assert torch.equal(program.module()(**other), Attention()(**other))


def test_autocast_changes_no_bit():
    x, do, _ = call("gk", states=True).make_inputs()
    plain = value_and_gradients(attend, x, do)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_equal(value_and_gradients(attend, x, do), plain)


def test_func_grad_is_that_of_autograd():
    x, do, _ = call("gk").make_inputs()

    def loss(x):
        return (recurrent_linear_attention(**x) * do).sum()

    leaves = {name: t.clone().requires_grad_() for name, t in x.items()}
    expected = torch.autograd.grad(loss(leaves), tuple(leaves.values()))
    assert_equal(torch.func.grad(loss)(x).values(), expected)


def test_second_derivatives_and_forward_mode_are_refused():
    x, _, _ = call("gk").make_inputs()
    leaves = {name: t.requires_grad_() for name, t in x.items()}
    (dq,) = torch.autograd.grad(attend(**leaves)[0].square().sum(), leaves["q"], create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        dq.sum().backward()
    with pytest.raises(NotImplementedError, match="no forward-mode derivative"):
        torch.func.jvp(lambda q: attend(**{**x, "q": q})[0], (x["q"].detach(),), (x["q"].detach(),))


# ------------------------------------------------------------------------------------------ functorch


def mapped_inputs(count, w):
    """The inputs of several calls, stacked on a first axis."""
    each = [w.make_inputs(seed)[0] for seed in range(count)]
    return {name: torch.stack([x[name] for x in each]) for name in each[0]}


def one_by_one(function, x, dims):
    """What vmap has to give: the calls themselves, stacked."""
    count = max(len(t) for name, t in x.items() if dims[name] is not None)
    results = [
        function(**{name: t if dims[name] is None else t[i] for name, t in x.items()}) for i in range(count)
    ]
    return [torch.stack(parts) for parts in zip(*results, strict=True)]


def vmapped(function, dims):
    names = list(dims)

    def positional(*tensors):
        return function(**dict(zip(names, tensors, strict=True)))

    def run(x):
        return torch.vmap(positional, in_dims=tuple(dims.values()))(*[x[name] for name in names])

    return run


CALLS = {
    "gk": call(),
    "every gate": call("g g_gamma gk gv", states=True),
    "no head's gate": call("g gk gv", states=True, reverse=True),
    "packed": call("g gk", (1, 9, 2, 3, 4), states=True, lengths=(2, 0, 7)),
}


@pytest.mark.parametrize("which", CALLS)
@pytest.mark.parametrize("shared", ["", "k", "g_gamma", "initial_state", "cu_seqlens", "q v"])
def test_vmap_is_the_calls_one_by_one(which, shared):
    w = CALLS[which]
    x = mapped_inputs(3, w)
    dims = {name: None if name in shared.split() else 0 for name in x}
    x = {name: t if dims[name] == 0 else t[0] for name, t in x.items()}
    assert_equal(vmapped(attend, dims)(x), one_by_one(attend, x, dims))


@pytest.mark.parametrize("which", CALLS)
def test_vmap_over_nothing(which):
    w = CALLS[which]
    x = mapped_inputs(1, w)
    offsets = x.pop("cu_seqlens", None)

    def both(**tensors):
        def sums(tensors):
            o, end = attend(**tensors, cu_seqlens=None if offsets is None else offsets[0])
            return o.sum() + end.sum(), (o, end)

        gradients, results = torch.func.grad(sums, has_aux=True)(tensors)
        return *results, *gradients.values()

    run = vmapped(both, dict.fromkeys(x, 0))
    found, one = run({name: t[:0] for name, t in x.items()}), run(x)
    assert [(t.shape, t.dtype) for t in found] == [((0, *t.shape[1:]), t.dtype) for t in one]


@pytest.mark.parametrize("dim", [1, 2, -1])
def test_vmap_over_any_dimension(dim):
    x = mapped_inputs(3, CALLS["no head's gate"])
    dims = dict.fromkeys(x, 0)
    moved = {name: t.movedim(0, min(dim, t.dim() - 1)) for name, t in x.items()}
    places = {name: min(dim, t.dim() - 1) for name, t in x.items()}
    assert_equal(vmapped(attend, places)(moved), one_by_one(attend, x, dims))


@pytest.mark.parametrize("which", CALLS)
def test_vmap_of_gradients(which):
    w = CALLS[which]
    x = mapped_inputs(3, w)
    offsets = x.pop("cu_seqlens", None)
    offsets = None if offsets is None else offsets[0]
    do = torch.stack([w.make_inputs(seed)[1] for seed in range(3)])

    def gradients(do, **tensors):
        def loss(tensors):
            o, end = recurrent_linear_attention(
                **tensors, output_final_state=True, reverse=w.reverse, cu_seqlens=offsets
            )
            return (o * do).sum() + end.square().sum()

        return tuple(torch.func.grad(loss)(tensors).values())

    given = {"do": do, **x}
    dims = dict.fromkeys(given, 0)
    assert_equal(vmapped(gradients, dims)(given), one_by_one(gradients, given, dims))


def test_vmap_of_gradients_over_offsets():
    x, do, _ = call("gk", (1, 9, 2, 3, 4)).make_inputs()

    def gradient(q, offsets):
        rest = {**x, "q": q, "cu_seqlens": offsets}
        return torch.func.grad(lambda q: (recurrent_linear_attention(**{**rest, "q": q}) * do).sum())(q)

    given = {"q": torch.stack((x["q"], 2 * x["q"])), "offsets": torch.tensor([[0, 2, 9], [0, 5, 9]])}
    dims = dict.fromkeys(given, 0)
    found = vmapped(gradient, dims)(given)
    assert_equal([found], one_by_one(lambda **t: (gradient(**t),), given, dims))


def test_nested_vmap():
    x = mapped_inputs(6, call())
    x = {name: t.unflatten(0, (2, 3)) for name, t in x.items()}

    def attend_to(q, k, v, gk):
        return recurrent_linear_attention(q, k, v, gk=gk)

    found = torch.vmap(torch.vmap(attend_to))(*x.values())
    expected = [[attend_to(*(t[i, j] for t in x.values())) for j in range(3)] for i in range(2)]
    assert torch.equal(found, torch.stack([torch.stack(row) for row in expected]))


def test_jacobian_is_that_of_the_specification():
    x, _, _ = call("gk gv", (1, 3, 1, 2, 2)).make_inputs()

    def of(function, dtype):
        tensors = [t.to(dtype) for t in x.values()]
        return torch.func.jacrev(
            lambda *t: function(**dict(zip(x, t, strict=True))), argnums=tuple(range(len(tensors)))
        )(*tensors)

    found = of(recurrent_linear_attention, torch.float32)
    expected = of(reference.recurrent_linear_attention, torch.float64)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "f",
    [
        lambda q, x: torch.func.jvp(lambda q: attend(**{**x, "q": q})[0], (q,), (q.sin(),)),
        lambda q, x: torch.func.jacfwd(lambda q: attend(**{**x, "q": q})[0])(q),
        lambda q, x: torch.func.hessian(lambda q: attend(**{**x, "q": q})[0].square().sum())(q),
    ],
    ids=["jvp", "jacfwd", "hessian"],
)
def test_forward_mode_says_what_to_do(f):
    x, _, _ = call(shape=(1, 3, 1, 2, 2)).make_inputs()
    with pytest.raises(
        NotImplementedError,
        match=r"recurrent_linear_attention has no .*derivative.*helion_sinkhorn\.reference",
    ):
        f(x["q"], x)


def test_batched_gradients_are_refused():
    x, do, _ = call("gk").make_inputs()
    leaves = {name: t.requires_grad_() for name, t in x.items()}
    o, _ = attend(**leaves)
    with pytest.raises(NotImplementedError, match=r"no batched gradients.*torch\.func\.vjp"):
        torch.autograd.grad(o, tuple(leaves.values()), torch.stack((do, do)), is_grads_batched=True)


# ------------------------------------------------------------------------------- memory and metadata


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpoint(use_reentrant):
    x, do, _ = call("g gk").make_inputs()
    runs = []

    def block(q, k, v, g, gk):
        runs.append(1)
        return recurrent_linear_attention(2 * q, k, v, g=g, gk=gk)

    leaves = [t.requires_grad_() for t in x.values()]
    expected = torch.autograd.grad(block(*leaves), leaves, do)
    runs.clear()
    checkpoint(block, *leaves, use_reentrant=use_reentrant).backward(do)
    assert_equal([t.grad for t in leaves], expected)
    assert len(runs) == 2


def test_arguments_changed_before_backward_are_noticed():
    x, do, _ = call("gk").make_inputs()
    leaves = {name: t.requires_grad_() for name, t in x.items()}
    for name in leaves:
        changed = {**leaves, name: leaves[name] * 1}
        o, _ = attend(**changed)
        changed[name].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.backward(do)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("layout", ["contiguous", "heads first", "one sequence expanded"])
def test_fakes_have_the_metadata_of_what_runs(layout, dtype):
    change = {
        "contiguous": lambda x: x,
        "heads first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "one sequence expanded": lambda x: x[:1].expand_as(x),
    }[layout]
    x, do, _ = call("g gk", dtype=dtype).make_inputs()
    x = {name: change(t) for name, t in x.items()}
    found = value_and_gradients(attend, x, do)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fake = {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype) for name, t in x.items()}
        faked = value_and_gradients(attend, fake, torch.empty_like(do))
    for a, b in zip(faked, found, strict=True):
        assert (a.shape, a.stride(), a.dtype) == (b.shape, b.stride(), b.dtype)


def test_other_batches_and_lengths_never_recompile():
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    # no two sizes of the first call are alike, or Dynamo would take them for one
    compiled = torch.compile(attend, fullgraph=True, backend=counter, dynamic=True)
    for batch, steps in ((3, 9), (8, 5), (5, 17), (4, 12)):
        x, do, _ = call("g gk", (batch, steps, 2, 4, 6)).make_inputs()
        assert_equal(value_and_gradients(compiled, x, do), value_and_gradients(attend, x, do))
    assert counter.frame_count == 1


def test_reruns_give_the_same_bits():
    x, do, _ = call("g g_gamma gk gv", (3, 50, 2, 16, 8), torch.bfloat16, states=True).make_inputs()
    once = value_and_gradients(attend, x, do)
    for _ in range(3):
        assert_equal(value_and_gradients(attend, x, do), once)
