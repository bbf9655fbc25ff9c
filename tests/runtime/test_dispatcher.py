"""What computes a call of an operator, and when it runs without asking the dispatcher again."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from autograd_calls import randn
from contract import Recorder

from helion_sinkhorn import sinkhorn
from helion_sinkhorn.ops.sinkhorn import torch_op
from helion_sinkhorn.runtime.dispatch import listens
from helion_sinkhorn.runtime.torch_op import Implementations

OPTIONS = (20, 1e-6, "deepseek", "rows", "pytorch")
X = randn(3, 4, 4)
CALLS = {
    "function": lambda x: sinkhorn(x),
    "torch.ops": lambda x: torch.ops.helion_sinkhorn.sinkhorn(x, *OPTIONS, torch.float32),
}


@pytest.mark.parametrize("needs_gradient", [False, True])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_mode_sees_an_operator_and_its_gradient(call, needs_gradient):
    leaf = X.clone().requires_grad_(needs_gradient)
    with Recorder() as recorder:
        y = call(leaf)
        if needs_gradient:
            y.sum().backward()
    seen = [operator._opname for operator, *_ in recorder.calls]
    assert seen == ["sinkhorn", "sinkhorn_backward"][: 1 + needs_gradient]
    assert torch.equal(y.detach(), sinkhorn(X))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_functionalisation_gets_a_functional_tensor(call):
    wrapped = torch._to_functional_tensor(X)
    torch._enable_functionalization(reapply_views=True)
    try:
        y = call(wrapped)
    finally:
        torch._disable_functionalization()
    assert torch._is_functional_tensor(y)
    assert torch.equal(torch._from_functional_tensor(y), sinkhorn(X))


@pytest.mark.parametrize("needs_gradient", [False, True])
def test_torch_ops_enter_python_once(monkeypatch, needs_gradient):
    """The second way through C++ took 4 us of a call: nothing but the operator itself is called there."""
    leaf = X.clone().requires_grad_(needs_gradient)
    run = mock.Mock(side_effect=torch_op.call.run)
    monkeypatch.setattr(torch_op.call, "run", run)
    y = CALLS["torch.ops"](leaf)
    run.assert_called_once()
    assert torch.equal(y.detach(), sinkhorn(X))
    assert y.requires_grad == needs_gradient
    if needs_gradient:
        (gradient,) = torch.autograd.grad(y, leaf, X)
        expected = leaf.detach().requires_grad_()
        assert torch.equal(gradient, torch.autograd.grad(sinkhorn(expected), expected, X)[0])


def test_a_launch_is_described_to_hooks_that_are_there():
    """Alone, or in a chain as triton.knobs.HookChain."""
    for none in (None, SimpleNamespace(calls=[])):
        assert not listens(none)
    for hook in (print, SimpleNamespace(calls=[print])):
        assert listens(hook)


def test_a_launcher_that_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "a_launcher.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        _ = Implementations("a_launcher").launcher


def test_an_unknown_implementation_is_not_pytorch():
    q = torch.zeros(1, 2, 1, 4)
    call = torch.ops.helion_sinkhorn.recurrent_linear_attention
    with pytest.raises(KeyError, match="chunkd"):
        call(q, q, q, None, None, None, None, 1.0, None, False, None, "chunkd")
