"""Every operator within the transforms of torch.func, as they are and compiled."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
import torch
from autograd_calls import randn

from helion_sinkhorn import dot_compress, ops, recurrent_linear_attention, reference, sinkhorn

Y, WEIGHT = randn(5, 3, seed=1), randn(5, 4, seed=2)


def attended(x):
    """One sequence of one head."""
    q = x[None, :, None]
    return recurrent_linear_attention(q, q.sin(), q, g=-q[..., 0].square())


FUNCTIONS = {
    "sinkhorn": lambda x: (sinkhorn(x) * WEIGHT).sum(),
    "log": lambda x: (sinkhorn(x, form="log", first="cols") * WEIGHT).sum(),
    "implicit": lambda x: (sinkhorn(x, backward="implicit") * WEIGHT).sum(),
    "dot_compress": lambda x: dot_compress(x, Y).square().sum(),
    "attention": lambda x: (attended(x)[0, :, 0] * WEIGHT).sum(),
}
TRANSFORMS = {
    "grad": lambda f: lambda x: torch.func.grad(f)(x[0]),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(f)),
    "grad of vmap": lambda f: torch.func.grad(lambda x: torch.vmap(f)(x).sum()),
    "vjp": lambda f: lambda x: torch.func.vjp(f, x[0])[1](torch.tensor(2.0))[0],
    "jacrev": lambda f: torch.func.jacrev(torch.vmap(f)),
}
X = randn(3, 5, 4)


def autograd_functions():
    """Every operator's, with and without a gradient of its own."""
    for found in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if found.name.endswith(".torch_op"):
            for value in vars(importlib.import_module(found.name)).values():
                if isinstance(value, type) and issubclass(value, torch.autograd.Function):
                    yield value


def test_what_an_error_names_instead_exists():
    """A derivative that no kernel has is refused with the name of a function that autograd differentiates."""
    named = set()
    for function in autograd_functions():
        with pytest.raises(NotImplementedError) as refusal:
            function.jvp(None)
        named |= set(re.findall(r"helion_sinkhorn\.reference\.(\w+)", str(refusal.value)))
    assert {"sinkhorn", "hc_boundary"} <= named
    assert {name for name in named if not callable(getattr(reference, name, None))} == set()


def gradients(f):
    """By autograd, matrix by matrix."""
    leaf = X.clone().requires_grad_()
    return torch.autograd.grad(sum(map(f, leaf)), leaf)[0]


@pytest.mark.parametrize(
    ("transform", "compiled"),
    [*((name, False) for name in TRANSFORMS), *((name, True) for name in [*TRANSFORMS][:3])],
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_are_those_of_autograd(function, transform, compiled):
    f = FUNCTIONS[function]
    run = TRANSFORMS[transform](f)
    torch._dynamo.reset()
    found = torch.compile(run, backend="aot_eager", fullgraph=True)(X) if compiled else run(X)
    expected = gradients(f)
    if transform in ("grad", "vjp"):
        expected = expected[0] * (2.0 if transform == "vjp" else 1.0)
    elif transform == "jacrev":
        expected = expected * torch.eye(3)[:, :, None, None]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_what_an_ended_transform_left_behind_is_a_tensor_like_others():
    """torch.func.grad wraps its argument, and a function may keep the wrapper."""
    kept = []

    def loss(x):
        kept.append(x)
        return sinkhorn(x).square().sum()

    x, w = torch.randn(3, 4, 4), torch.ones((), requires_grad=True)
    torch.func.grad(loss)(x)
    assert torch._C._functorch.is_functorch_wrapped_tensor(kept[0])
    assert torch.equal(sinkhorn(kept[0]), sinkhorn(x))
    sinkhorn(kept[0].requires_grad_())
    found, expected = (torch.autograd.grad(sinkhorn(t * w).square().sum(), w)[0] for t in (kept[0], x))
    assert torch.equal(found, expected)
