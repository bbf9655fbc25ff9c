"""Every operator, called in every way of torch, with each argument trained alone and each one frozen."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch
from contract import by_torch_ops
from launches import SITES, kernels_on_cpu
from operator_table import GATES, OPERATORS, gradients, loss
from shared import NIGHTLY
from torch._dynamo import compiled_autograd

BY_NIGHT = pytest.mark.nightly("other arguments of operators that the gate compiles too: 4 minutes")
BY_DAY = [name for name, row in OPERATORS.items() if not row.kernels or name == "hc_site, kernels"]
MOST = max(len(row.shapes(1)) for row in OPERATORS.values())


@functools.cache
def truth(name):
    """Gradients of the specification in float64."""
    row = OPERATORS[name]
    given = {argument: x.double() for argument, x in row.arguments().items()}
    return gradients(row.specification, given, given)


def assert_gradients(name, by_argument, trained):
    for argument, expected in truth(name).items():
        g = by_argument[argument]
        if argument not in trained:
            assert g is None, f"{name}: a gradient of {argument}, which needs none"
            continue
        assert g is not None, f"{name}: no gradient of {argument}"
        error = ((g.double() - expected).abs().max() / expected.abs().max()).item()
        assert error < 2e-5, f"{name}: the gradient of {argument} is off by {error:.1e} of its largest entry"


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given):
        return self.function(*given)


def exported(row):
    return torch.export.export(Module(row.function), tuple(row.arguments().values()), strict=False).module()


def eager(row):
    return row.function


@pytest.mark.parametrize(
    ("name", "way"),
    [
        # graphs of the others call their operators in the same way
        pytest.param(name, way, marks=() if way is eager or name in BY_DAY else BY_NIGHT)
        for name in OPERATORS
        for way in (eager, by_torch_ops, exported)
    ],
)
def test_each_argument_trained_alone_and_each_frozen(name, row, way):
    function, arguments = way(row), list(row.shapes(1))
    # interpreted bodies take a third of a second a case: their frozen arguments by night
    both = (True, False) if NIGHTLY or not row.kernels else (True,)
    for place in range(len(arguments)):
        for alone in both:
            trained = trained_of(arguments, place, alone)
            assert_gradients(name, gradients(function, row.arguments(), trained), trained)


def trained_of(arguments, place, alone):
    """The argument at this place, or all others."""
    others = [*arguments[:place], *arguments[place + 1 :]]
    return [arguments[place]] if alone or not others else others


class Together:
    """Several rows as one function of all their arguments: one graph for a compiler."""

    def __init__(self, names, place, alone, way=eager):
        self.rows = {name: OPERATORS[name] for name in names}
        self.functions = [way(row) for row in self.rows.values()]
        self.arguments = [list(row.shapes(1)) for row in self.rows.values()]
        self.given = [x for row in self.rows.values() for x in row.arguments().values()]
        self.trained = [trained_of(arguments, place, alone) for arguments in self.arguments]
        self.flags = [
            a in t for arguments, t in zip(self.arguments, self.trained, strict=True) for a in arguments
        ]

    def loss(self, *given):
        left, terms = list(given), []
        for function, arguments in zip(self.functions, self.arguments, strict=True):
            count = len(arguments)
            terms.append(loss(function(*left[:count])))
            left = left[count:]
        return torch.stack(terms).sum()

    def leaves(self):
        return [x.clone().requires_grad_(flag) for x, flag in zip(self.given, self.flags, strict=True)]

    def assert_gradients(self, grads):
        grads = iter(grads)
        for name, arguments, trained in zip(self.rows, self.arguments, self.trained, strict=True):
            assert_gradients(name, {a: next(grads) for a in arguments}, trained)


def of_compiled(together, backend="aot_eager"):
    leaves = together.leaves()
    torch.compile(together.loss, backend=backend, fullgraph=True)(*leaves).backward()
    return [x.grad for x in leaves]


def of_inductor(together):
    return of_compiled(together, "inductor")


def of_compiled_func_grad(together):
    numbers = tuple(k for k, flag in enumerate(together.flags) if flag)
    compiled = torch.compile(torch.func.grad(together.loss, numbers), backend="aot_eager", fullgraph=True)
    grads = iter(compiled(*together.given))
    return [next(grads) if flag else None for flag in together.flags]


def of_compiled_autograd(together):
    leaves = together.leaves()
    value = together.loss(*leaves)
    with compiled_autograd._enable(functools.partial(torch.compile, backend="eager", fullgraph=True)):
        value.backward()
    return [x.grad for x in leaves]


@pytest.mark.parametrize(
    ("way", "place", "alone", "kernels"),
    [
        # by day the first argument of the parts alone; test_functorch.py compiles func.grad of three
        pytest.param(*case, marks=() if case == (of_compiled, 0, True, False) else BY_NIGHT)
        for case in itertools.product(
            (of_compiled, of_compiled_func_grad, of_inductor), range(MOST), (True, False), (False, True)
        )
    ],
)
def test_compiled_with_each_argument_trained_alone_and_each_frozen(way, place, alone, kernels, monkeypatch):
    if kernels:
        kernels_on_cpu(monkeypatch, SITES)
    # the gates one by one only there where Python decides what has a gradient, above
    names = [
        name
        for name, row in OPERATORS.items()
        if row.kernels == kernels
        and len(row.shapes(1)) > place
        and name.removeprefix("attention, ") not in GATES
    ]
    torch._dynamo.reset()
    together = Together(names, place, alone)
    together.assert_gradients(way(together))


@pytest.mark.parametrize("way", [eager, by_torch_ops])
@pytest.mark.parametrize(
    "names",
    [["hc_post", "attention, all gates"], pytest.param(list(OPERATORS), marks=BY_NIGHT)],
    ids=["two", "all"],
)
def test_compiled_autograd(names, way):
    torch._dynamo.reset()
    names = [name for name in names if not OPERATORS[name].kernels]
    for place in (4,) if len(names) < 3 else range(MOST):
        some = [name for name in names if len(OPERATORS[name].shapes(1)) > place]
        together = Together(some, place, True, way)
        together.assert_gradients(of_compiled_autograd(together))
