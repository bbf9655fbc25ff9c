"""The torch operators of linear attention: what autograd, compilers, functorch and autocast see of them."""

from __future__ import annotations

import math

import pytest
import torch
from attention_problem import workload
from autograd_calls import assert_equal
from contract import opcheck, recorded
from operator_table import Row
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from helion_sinkhorn import recurrent_linear_attention


@pytest.mark.parametrize(
    "w",
    [
        workload("g", (1, 6, 1, 3, 2), states=True, reverse=True, lengths=(2, 4)),
        workload("gv", (0, 5, 2, 3, 4)),
    ],
    ids=["packed", "no sequence"],
)
def test_opcheck(w):
    x, *_ = w.make_inputs()
    names = [name for name in x if name != "cu_seqlens"]

    def run(*given):
        return attend(**x | dict(zip(names, given, strict=True)), reverse=w.reverse)

    for operator, arguments, _ in recorded(Row(run, run, None), [x[name] for name in names]):
        opcheck(operator, arguments)


def value_and_gradients(function, x, do, **options):
    leaves = {name: t.detach().requires_grad_() for name, t in x.items()}
    o, end = function(**leaves, **options)
    return o, end, *torch.autograd.grad((o, end), tuple(leaves.values()), (do, torch.ones_like(end)))


def attend(**tensors):
    return recurrent_linear_attention(**tensors, output_final_state=True)


def test_compiled_packed():
    torch._dynamo.reset()
    x, _, _ = workload("gk", (1, 9, 2, 3, 4), lengths=(2, 7)).make_inputs()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    assert_equal(compiled(**x), attend(**x))


def test_a_scale_that_changes():
    torch._dynamo.reset()
    x, do, _ = workload("gk").make_inputs()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for scale in (0.5, 0.25, -3.0, 2):
        assert_equal(*(value_and_gradients(function, x, do, scale=scale) for function in (compiled, attend)))
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
        lambda f: f,
        lambda f: torch.compile(f, fullgraph=True, backend="aot_eager"),
        under_a_mode,
        torch.func.functionalize,
        lambda f: lambda q, offsets: torch.vmap(f)(q[None], offsets[None]),
        lambda f: torch.func.grad(lambda q, offsets: f(q, offsets).sum()),
        lambda f: lambda q, offsets: torch.autograd.grad(f(q.requires_grad_(), offsets).sum(), q),
    ],
    ids=["none", "compile", "mode", "functionalize", "vmap", "grad", "autograd"],
)
@pytest.mark.parametrize("offsets", [[-1, 9], [0, 6, 4, 9], [0, 10]])
def test_wrong_offsets_are_noticed_also_under_transforms(transform, offsets):
    torch._dynamo.reset()
    x, _, _ = workload("gk", (1, 9, 2, 3, 4)).make_inputs()
    q = x.pop("q")

    def attend_to(q, offsets):
        return recurrent_linear_attention(q, **x, cu_seqlens=offsets)

    run = transform(attend_to)
    run(q, torch.tensor([0, 2, 9]))
    with pytest.raises(ValueError, match="pass ascending offsets of 0 to T = 9"):
        run(q, torch.tensor(offsets))


def test_fake_offsets_outside_their_mode():
    x, _, _ = workload("gk", (1, 9, 2, 3, 4), lengths=(2, 7)).make_inputs()
    mode = FakeTensorMode()
    o, end = attend(**{name: mode.from_tensor(t) for name, t in x.items()})
    assert (o.shape, end.shape) == ((1, 9, 2, 4), (2, 2, 3, 4))


# ------------------------------------------------------------------------------------------ functorch


PACKED = workload("g gk", (1, 9, 2, 3, 4), states=True, lengths=(2, 0, 7))
"""Calls without offsets are in tests/contract."""


def both(do, cu_seqlens=None, **tensors):
    """Results of a call backwards, and gradients of all tensors."""

    def loss(tensors):
        o, end = attend(**tensors, reverse=True, cu_seqlens=cu_seqlens)
        return (o * do).sum() + end.square().sum(), (o, end)

    gradients, results = torch.func.grad(loss, has_aux=True)(tensors)
    return *results, *gradients.values()


def mapped(shared):
    """(arguments of `both` for three calls, some of which they share; the dimension that is mapped)."""
    each = [PACKED.make_inputs(seed) for seed in range(3)]
    x = {name: torch.stack([x[name] for x, *_ in each]) for name in each[0][0]}
    x["do"] = torch.stack([do for _, do, _ in each])
    x["cu_seqlens"][1, 1:3] = 5
    dims = {name: None if name in shared.split() else 0 for name in x}
    return {name: t[0] if dims[name] is None else t for name, t in x.items()}, dims


def vmapped(x, dims):
    return torch.vmap(
        lambda *tensors: both(**dict(zip(dims, tensors, strict=True))), in_dims=tuple(dims.values())
    )(*[x[name] for name in dims])


@pytest.mark.parametrize("shared", ["", "k", "initial_state", "cu_seqlens", "q v"])
def test_vmap_is_the_calls_one_by_one(shared):
    x, dims = mapped(shared)
    calls = [both(**{name: t if dims[name] is None else t[i] for name, t in x.items()}) for i in range(3)]
    assert_equal(vmapped(x, dims), [torch.stack(parts) for parts in zip(*calls, strict=True)])


def test_vmap_over_nothing():
    x, dims = mapped("cu_seqlens")
    empty = vmapped({name: t if dims[name] is None else t[:0] for name, t in x.items()}, dims)
    expected = [((0, *t.shape[1:]), t.dtype) for t in vmapped(x, dims)]
    assert [(t.shape, t.dtype) for t in empty] == expected
