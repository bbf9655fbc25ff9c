"""Every operator and autograd: what is kept, other derivatives, changes in place, autocast, checkpoints."""

from __future__ import annotations

import re

import pytest
import torch
from autograd_calls import NoGradient, assert_equal
from contract import (
    DTYPES,
    assert_same,
    by_torch_ops,
    called,
    each_function,
    each_of_pytorch,
    each_row,
    listed,
    recorded,
    upstream_of,
)
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

KEPT = {
    "sinkhorn": ("logits",),
    "sinkhorn, log": ("logits",),
    "sinkhorn, implicit": ((3, 5, 3, 3),),
    # the row marginals twice: their sum is the mass that the columns share
    "sinkhorn, marginals": (
        "logits", "rows", (3, 5, 4), (3, 5, 5), (3, 5, 1), (3, 3, 5, 4), (3, 3, 5, 5)
    ),
    "dot_compress": ("x", "y", (3, 5, 1, 3, 2)),
    "dot_compress, without z": ("x", "y", (3, 5, 2, 3, 2)),
    # a square, and weights of the norm, are of PyTorch's operations beside the operator
    "hc_split_sinkhorn, reduced": ("squares", "scale", "base", (3, 5, 8), (3, 5, 2)),
    "hc_mixes": ("x", "fn", "norm_weight", (5, 6), (3, 5, 5), (3, 5, 2)),
    "hc_mixes, merged": ("x", "fn", (3, 5, 5), (3, 5, 2)),
    "hc_mixes, prenorm": ("x", "fn", "norm_weight", (5, 6)),
    "hc_site, kernels": (
        "x", "fn", "norm_weight", "scale", "base", (8, 6), (3, 5, 2), (3, 5, 8), (3, 5, 2)
    ),
    "hc_boundary, kernels": (
        "f", "x", "post", "comb", "bias", "pre_next", "fn", "scale", "base",
        (3, 5, 2, 3), (3, 5, 8), (3, 5, 2),
    ),
    "hc_boundary, norm, kernels": (
        "f", "x", "post", "comb", "bias", (3, 5, 2), "fn", "scale", "base", "y_norm_weight",
        (3, 5, 2, 3), (3, 5, 8), (3, 5, 2),
    ),
}  # fmt: skip
"""What a graph keeps: arguments by name, and other tensors by shape; of other rows the arguments alone."""
SAVED_RESULTS = {
    "sinkhorn, implicit": {0},
    "hc_mixes": {0},
    "hc_mixes, merged": {0},
    "hc_site, kernels": {3},
    "hc_boundary, kernels": {4},
    "hc_boundary, norm, kernels": {1, 4},
}
"""Results that the backward reads, or that are the streams themselves."""

CHANGED = r"modified (by an )?inplace"


def trained(given, names):
    return [x.clone().requires_grad_(name in names) for name, x in given.items()]


@each_row
def test_what_is_kept(name, row):
    """Each argument itself and not a copy, and what the backward needs besides."""
    given = row.arguments(3, 5, streams=torch.bfloat16 if name != "hc_split_sinkhorn, reduced" else None)
    leaves, kept = {name: x.requires_grad_() for name, x in given.items()}, []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        row.function(*leaves.values())
    expected = KEPT.get(name, tuple(leaves))
    addresses = {t.data_ptr() for t in kept}
    assert {n for n, x in leaves.items() if x.data_ptr() in addresses} >= {
        n for n in expected if isinstance(n, str)
    }
    shapes = [tuple(leaves[n].shape) if isinstance(n, str) else n for n in expected]
    # a view of all of an argument, as streams apart are of merged ones, is the argument
    whole = {(x.data_ptr(), x.numel()): x for x in leaves.values()}
    tensors = [whole.get((t.data_ptr(), t.numel()), t) for t in kept]
    assert sorted(tuple(t.shape) for t in tensors) == sorted(shapes)


@each_of_pytorch
def test_nothing_is_kept_without_a_gradient(name, row):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        results = listed(row.function(*row.arguments(3, 5).values()))
        with torch.no_grad():
            leaves = [x.requires_grad_() for x in row.arguments(3, 5).values()]
            results += listed(row.function(*leaves))
    assert not kept
    assert not any(y.requires_grad for y in results)


@each_row
def test_gradients_of_some_arguments_have_the_same_bits(name, row):
    given = row.arguments(2, 5)
    every = dict(zip(given, called(row.function, [*given.values()])[-len(given) :], strict=True))
    for some in [{n} for n in given] + [{*given} - {n} for n in given if len(given) > 1]:
        leaves = trained(given, some)
        results = listed(row.function(*leaves))
        pairs = [(y, g) for y, g in zip(results, upstream_of(results), strict=True) if y.requires_grad]
        there, upstream = zip(*pairs, strict=True)
        gradients = torch.autograd.grad(there, [x for x in leaves if x.requires_grad], upstream)
        assert_same(name, gradients, [every[n] for n in given if n in some])


@each_row
def test_unused_results_have_zero_gradients(name, row):
    given = [*row.arguments(2, 5).values()]
    upstream = upstream_of(row.function(*given))
    for used in range(len(upstream)):
        leaves = [x.clone().requires_grad_() for x in given]
        results = listed(row.function(*leaves))
        gradients = torch.autograd.grad(
            results[used], leaves, upstream[used], allow_unused=True, materialize_grads=True
        )
        again = [x.clone().requires_grad_() for x in given]
        results = listed(row.function(*again))
        zeros = [g if k == used else torch.zeros_like(g) for k, g in enumerate(upstream)]
        assert_same(name, gradients, torch.autograd.grad(results, again, zeros))


@each_row
def test_a_result_whose_gradient_is_none(name, row):
    leaves = [x.requires_grad_() for x in row.arguments(5, 2).values()]
    results = listed(row.function(*leaves))
    loss = sum(NoGradient.apply(y).sum() for y in results) + leaves[-1].sum()
    *others, last = torch.autograd.grad(loss, leaves, allow_unused=True)
    assert not any(g is not None and g.any() for g in others)
    assert torch.equal(last, torch.ones_like(last))


@each_function
def test_backward_twice_and_only_where_asked(name, row):
    leaves = [x.requires_grad_() for x in row.arguments(5, 2).values()]
    results = listed(row.function(*leaves))
    first = torch.autograd.grad(results, leaves, upstream_of(results), retain_graph=True)
    assert_equal(torch.autograd.grad(results, leaves, upstream_of(results)), first)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(results, leaves, upstream_of(results))


@each_row
def test_arguments_changed_before_backward_are_noticed(name, row):
    """Those that are kept; others may be changed, and the gradients are right."""
    given = row.arguments(2, 5)
    expected = called(row.function, [*given.values()])[-len(given) :]
    noticed = set()
    for changed in given:
        leaves = {n: x.clone().requires_grad_() for n, x in given.items()}
        inner = {n: x * 1 for n, x in leaves.items()}
        results = listed(row.function(*inner.values()))
        with torch.no_grad():
            inner[changed].add_(1)
        try:
            gradients = torch.autograd.grad(results, [*leaves.values()], upstream_of(results))
        except RuntimeError as error:
            if not re.search(CHANGED, str(error)):
                raise
            noticed.add(changed)
        else:
            assert_same(name, gradients, expected)
    arguments = {n for n in KEPT.get(name, tuple(given)) if isinstance(n, str)}
    assert noticed == arguments


@each_row
def test_results_may_be_changed_in_place(name, row):
    """By dropout(inplace=True) for instance; where the backward reads a result, that is an error."""
    given = [*row.arguments(2, 5).values()]
    before = [x.clone() for x in given]
    upstream = upstream_of(row.function(*given))
    wanted = {"allow_unused": True, "materialize_grads": True}
    for k, g in enumerate(upstream):
        leaves = [x.clone().requires_grad_() for x in given]
        results = listed(row.function(*leaves))
        if k in SAVED_RESULTS.get(name, ()):
            with pytest.raises(RuntimeError, match=CHANGED):
                results[k].mul_(2).sum().backward()
            continue
        expected = torch.autograd.grad(results[k], leaves, 2 * g, retain_graph=True, **wanted)
        assert_same(name, torch.autograd.grad(results[k].mul_(2), leaves, g, **wanted), expected)
        plain = listed(row.function(*given))[k]
        assert plain.is_contiguous()
        plain.fill_(float("nan"))
        assert_equal(given, before)


@each_function
def test_autocast_changes_no_bit(name, row):
    for dtype, autocast in (
        ("float32", torch.bfloat16), ("narrow", torch.float16), ("float64", torch.bfloat16),
    ):  # fmt: skip
        given = [*row.arguments(3, 5, **DTYPES[dtype]).values()]
        plain = called(row.function, given)
        with torch.autocast("cpu", dtype=autocast):
            # a product would come out narrow
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == autocast
            results = listed(row.function(*given))
            # PyTorch's own backward of unbind takes no bfloat16 where autocast is of float16
            if name != "hc_post, without comb" or autocast != torch.float16:
                results = called(row.function, given)
            assert_same(name, results, plain[: len(results)])


@pytest.mark.parametrize("use_reentrant", [True, False])
@each_row
def test_checkpoint(name, row, use_reentrant):
    runs = []

    def block(*given):
        runs.append(1)
        return row.function(given[0] * 2, *given[1:])

    given = [*row.arguments(3, 5).values()]
    plain = called(block, given)
    runs.clear()
    leaves = [x.clone().requires_grad_() for x in given]
    results = listed(checkpoint(block, *leaves, use_reentrant=use_reentrant))
    torch.autograd.backward(results, upstream_of(results))
    assert_same(name, [*(y.detach() for y in results), *(x.grad for x in leaves)], plain)
    assert len(runs) == 2


@pytest.mark.parametrize("in_a_graph", [False, True])
@each_row
def test_second_derivatives_say_what_to_do(name, row, in_a_graph):
    # the streams of a boundary alone have the gradient of hc_post
    named = f"({row.named}|hc_post)" if "boundary" in name else row.named
    said = rf"no second derivative.*use helion_sinkhorn\.reference\.{named}"
    given = [*row.arguments(2, 3).values()]
    function = by_torch_ops(row, 2, 3) if in_a_graph else row.function
    for used in range(len(listed(function(*given)))):
        leaves = [x.clone().requires_grad_() for x in given]
        y = listed(function(*leaves))[used]
        if row.named == "hc_site" and row.kernels and used == 3:
            # x itself, whose gradient is the upstream gradient
            continue
        upstream = [g.requires_grad_() for g in upstream_of(y)]
        gradients = torch.autograd.grad(y, leaves, upstream, create_graph=True, allow_unused=True)
        there = [g for g in gradients if g is not None and g.requires_grad]
        for wanted in (leaves[0], *upstream):
            with pytest.raises(NotImplementedError, match=said):
                torch.autograd.grad(sum(g.square().sum() for g in there), wanted, retain_graph=True)


@each_row
def test_the_gradient_as_an_operator_has_none_itself(name, row):
    """Called as torch.ops, as a graph has it."""
    _, (gradient, arguments, _) = recorded(row, [*row.arguments(2, 3).values()])
    leaves = [
        x.detach().requires_grad_(x.is_floating_point()) if isinstance(x, torch.Tensor) else x
        for x in arguments
    ]
    with pytest.raises(NotImplementedError, match=rf"no second derivative.*reference\.{row.named}"):
        sum(t.sum() for t in listed(gradient(*leaves)) if t.numel()).backward()


def squares(f):
    return lambda t: sum(y.square().sum() for y in listed(f(t)))


def dual(f, x):
    with forward_ad.dual_level():
        return f(forward_ad.make_dual(x, x.sin()))


def dual_upstream(f, x):
    leaf = x.clone().requires_grad_()
    results = listed(f(leaf))
    with forward_ad.dual_level():
        upstream = [forward_ad.make_dual(g, g.sin()) for g in upstream_of(results)]
        return torch.autograd.grad(results, leaf, upstream)


WAYS = [
    lambda f, x: torch.func.jvp(f, (x,), (x.sin(),)),
    lambda f, x: torch.func.jacrev(torch.func.grad(squares(f)))(x),
    lambda f, x: torch.vmap(lambda t: torch.func.jvp(f, (t,), (t.sin(),)))(x[None]),
    lambda f, x: torch.func.jacfwd(f)(x),
    lambda f, x: torch.func.hessian(squares(f))(x),
    dual,
    dual_upstream,
]


@each_row
def test_forward_mode_says_what_to_do_and_never_answers_zero(name, row):
    """By every way for the first argument, by two for each of the others."""
    given = [*row.arguments(2, 3).values()]
    for k in range(len(given)):

        def f(t, k=k):
            return row.function(*given[:k], t, *given[k + 1 :])

        for way in WAYS if k == 0 else WAYS[:2]:
            with pytest.raises(
                NotImplementedError, match=rf"has no .*derivative.*helion_sinkhorn\.reference\.{row.named}"
            ):
                way(f, given[k])
