"""Every operator inside the transforms of torch.func: mapped, differentiated, and both."""

from __future__ import annotations

import pytest
import torch
from autograd_calls import randn
from contract import (
    DTYPES,
    assert_same,
    called,
    each_dtype,
    each_function,
    each_of_pytorch,
    each_row,
    listed,
    upstream_of,
)
from torch.utils._pytree import tree_leaves

SIZE = 3


def dims_of(row, which):
    """The mapped dimension of each argument, or None."""
    for k, (name, where) in enumerate(row.token_dims().items()):
        if which == "tokens":
            yield 0 if where else None
        elif which == "other dimensions":
            yield (-1, 1, 0)[k % 3] if where else None
        else:
            yield 0 if which in ("all", name) else None


def stacked(row, dims, **options):
    """(arguments with mapped dimensions, the arguments of each single call)."""
    each = [[*row.arguments(2, 5, seed=k, **options).values()] for k in range(SIZE)]
    own = [[each[0][k] if d is None else one[k] for k, d in enumerate(dims)] for one in each]
    mapped = [own[0][k] if d is None else torch.stack([one[k] for one in own], d) for k, d in enumerate(dims)]
    return mapped, own


def one_by_one(function, calls):
    return [torch.stack(parts) for parts in zip(*(listed(function(*one)) for one in calls), strict=True)]


def assert_mapped(name, row, which, **options):
    dims = tuple(dims_of(row, which))
    mapped, own = stacked(row, dims, **options)
    results = listed(torch.vmap(row.function, in_dims=dims)(*mapped))
    assert_same(name, results, one_by_one(row.function, own))


@each_dtype
def test_vmap_is_the_calls_one_by_one(name, row, dtype):
    for which in ("tokens", "all", "other dimensions") if dtype == "float32" else ("other dimensions",):
        assert_mapped(name, row, which, **DTYPES[dtype])


@each_row
def test_vmap_of_each_argument_alone(name, row):
    for which in row.token_dims():
        assert_mapped(name, row, which)


@each_row
def test_vmap_over_nothing(name, row):
    dims = tuple(dims_of(row, "tokens"))
    mapped, _ = stacked(row, dims)

    def both(*given):
        results, pull = torch.func.vjp(row.function, *given)
        return results, *pull(results)

    vmapped = torch.vmap(both, in_dims=dims)
    empty = vmapped(*(x if d is None else x[:0] for x, d in zip(mapped, dims, strict=True)))
    one = tree_leaves(vmapped(*mapped))
    assert [(t.shape, t.dtype) for t in tree_leaves(empty)] == [((0, *t.shape[1:]), t.dtype) for t in one]


@each_row
def test_nested_and_chunked_vmap(name, row):
    _, own = stacked(row, tuple(dims_of(row, "all")))
    calls = [*own, *reversed(own)]
    expected = one_by_one(row.function, calls)
    given = [torch.stack(parts) for parts in zip(*calls, strict=True)]
    # the outer map takes the second of the two dimensions
    outer, inner = torch.vmap(torch.vmap(row.function), 1, 1), torch.vmap(row.function, chunk_size=4)
    two = [t.flatten(0, 1) for t in listed(outer(*(x.unflatten(0, (2, SIZE)) for x in given)))]
    assert_same(name, two, expected)
    assert_same(name, listed(inner(*given)), expected)


@pytest.mark.parametrize(("how", "which"), [("grad", "tokens"), ("vjp", "all")])
@each_row
def test_gradients_of_each_sample(name, row, which, how):
    """A parameter's gradient is of the sample's tokens alone, also where the parameter is shared."""
    dims = tuple(dims_of(row, which))
    mapped, own = stacked(row, dims)

    upstream = upstream_of(row.function(*own[0]))

    def loss(*given):
        return sum((y * g).sum() for y, g in zip(listed(row.function(*given)), upstream, strict=True))

    def differentiated(*given):
        if how == "grad":
            return torch.func.grad(loss, tuple(range(len(given))))(*given)
        results, pull = torch.func.vjp(row.function, *given)
        return pull(upstream[0] if isinstance(results, torch.Tensor) else tuple(upstream))

    expected = [torch.stack(parts) for parts in zip(*(called(row.function, one) for one in own), strict=True)]
    gradients = torch.vmap(differentiated, in_dims=dims)(*mapped)
    if how == "grad" and "reduced" in name:
        # a sum that autograd sees is not made in place, and in another order
        for a, b in zip(gradients, expected[len(upstream) :], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    else:
        assert_same(name, gradients, expected[len(upstream) :])


@each_row
def test_gradient_of_a_vmapped_call(name, row):
    """Outside of the map the gradient of a shared argument is a sum over it."""
    dims = tuple(dims_of(row, "tokens"))
    mapped, _ = stacked(row, dims)

    def differentiated(function, given, leaves):
        results = listed(function(*given))
        return torch.autograd.grad(results, leaves, upstream_of(results))

    leaves = [x.clone().requires_grad_() for x in mapped]
    gradients = differentiated(torch.vmap(row.function, in_dims=dims), leaves, leaves)
    again = [x.clone().requires_grad_() for x in mapped]
    calls = [[x if d is None else x[k] for x, d in zip(again, dims, strict=True)] for k in range(SIZE)]
    expected = differentiated(lambda *_: one_by_one(row.function, calls), again, again)
    for a, b, d in zip(gradients, expected, dims, strict=True):
        if d is not None:
            assert_same(name, [a], [b])
        else:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def scalar(row, upstream):
    """A loss of the first argument that its gradients follow from."""
    return lambda x, *rest: sum(
        (y * g).sum() for y, g in zip(listed(row.function(x, *rest)), upstream, strict=True)
    )


@pytest.mark.parametrize(
    "name",
    ["sinkhorn", "attention, gk", "hc_split_sinkhorn, reduced"],
)
def test_compiled_transforms(name, row):
    """grad, vmap of grad and grad of vmap, of the first argument, in one graph."""
    x, *rest = row.arguments(2, 5).values()
    f = scalar(row, upstream_of(row.function(x, *rest)))
    xs = torch.stack([x, x.cos(), x.sin()])
    dims = (0, *[None] * len(rest))

    def transformed(xs, *rest):
        return (
            torch.func.grad(f)(xs[0], *rest),
            torch.vmap(torch.func.grad(f), in_dims=dims)(xs, *rest),
            torch.func.grad(lambda t: torch.vmap(f, in_dims=dims)(t, *rest).sum())(xs),
        )

    torch._dynamo.reset()
    gradients = torch.compile(transformed, backend="aot_eager", fullgraph=True)(xs, *rest)
    leaves = [t.clone().requires_grad_() for t in xs]
    each = torch.stack(torch.autograd.grad(sum(f(t, *rest) for t in leaves), leaves))
    for t, expected in zip(gradients, (each[0], each, each), strict=True):
        torch.testing.assert_close(t, expected, rtol=1e-5, atol=1e-6)


@each_of_pytorch
def test_batched_gradients(name, row):
    """autograd.grad(is_grads_batched=True) gives the gradients one by one; attention says what to do."""
    leaves = [x.requires_grad_() for x in row.arguments(2, 3).values()]
    results = listed(row.function(*leaves))
    upstream = [randn(SIZE, *y.shape, seed=k, dtype=y.dtype) for k, y in enumerate(results)]
    options = {"retain_graph": True}
    if row.named == "recurrent_linear_attention":
        with pytest.raises(NotImplementedError, match=r"no batched gradients.*torch\.func\.vjp"):
            torch.autograd.grad(results, leaves, upstream, is_grads_batched=True, **options)
        return
    gradients = torch.autograd.grad(results, leaves, upstream, is_grads_batched=True, **options)
    each = [torch.autograd.grad(results, leaves, one, **options) for one in zip(*upstream, strict=True)]
    assert_same(name, gradients, [torch.stack(parts) for parts in zip(*each, strict=True)])


@each_function
def test_values_and_jacobian_in_float64_are_those_of_the_specification(name, row):
    given = [*row.arguments(1, 2, dtype=torch.float64).values()]
    every = tuple(range(len(given)))
    for a, b in zip(listed(row.function(*given)), listed(row.specification(*given)), strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)
    jacobian = torch.func.jacrev(row.function, argnums=every)(*given)
    expected = torch.func.jacrev(row.specification, argnums=every)(*given)
    # the implicit gradient belongs to the fixed point, except for eps
    limit = 1e-5 if "implicit" in name else 1e-10
    for a, b in zip(tree_leaves(jacobian), tree_leaves(expected), strict=True):
        assert a.dtype == torch.float64
        torch.testing.assert_close(a, b, rtol=limit, atol=2 * limit)
