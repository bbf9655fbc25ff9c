"""The tensors that transforms of torch.func leave, and the errors of operators without a transform."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
import torch

from helion_sinkhorn import ops, reference, sinkhorn


def autograd_functions():
    """Every operator's, with and without a gradient of its own."""
    for module in pkgutil.walk_packages(ops.__path__, f"{ops.__name__}."):
        if module.name.endswith(".torch_op"):
            for value in vars(importlib.import_module(module.name)).values():
                if hasattr(value, "function"):
                    yield value.function


def test_what_an_error_names_instead_exists():
    """A derivative that no kernel has is refused with the name of a function that autograd differentiates."""
    named = set()
    for function in autograd_functions():
        with pytest.raises(NotImplementedError) as refusal:
            function.jvp(None)
        named |= set(re.findall(r"helion_sinkhorn\.reference\.(\w+)", str(refusal.value)))
    assert {"sinkhorn", "hc_boundary"} <= named
    assert {name for name in named if not callable(getattr(reference, name, None))} == set()


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
    gradient, expected = (torch.autograd.grad(sinkhorn(t * w).square().sum(), w)[0] for t in (kept[0], x))
    assert torch.equal(gradient, expected)
