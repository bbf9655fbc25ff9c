"""The gradient of a call is compiled while its forward is."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from forked import printed
from launches import at_an_h200, launching_as
from torch._subclasses.fake_tensor import FakeTensorMode

from helion_sinkhorn.ops.sinkhorn import launch, torch_op
from helion_sinkhorn.runtime import ahead, choices, dispatch
from helion_sinkhorn.runtime.generated import generating
from helion_sinkhorn.runtime.upcoming import upcoming

GPU = torch.device("cuda", 0)


@pytest.fixture
def begun(monkeypatch, fresh_caches):
    """The calls whose gradient a first launch begins to compile; nothing is launched."""
    calls = []
    monkeypatch.setattr(ahead, "begin", lambda *call: calls.append(call))
    monkeypatch.setattr(dispatch, "_programs", {})
    monkeypatch.setattr(dispatch, "compiled", lambda kernel, args: lambda *given: None)
    launching_as(monkeypatch, device_at=at_an_h200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    return calls


def call(x: torch.Tensor):
    given = x, 20, 1e-6, "deepseek", "rows", "helion", torch.float32
    return torch_op.apply(*given)


def test_the_first_forward_of_a_kind_begins_the_compilation_of_its_gradient(begun):
    x = torch.randn(64, 4, 4)
    call(x)
    assert begun == []
    dispatch._programs.clear()
    p = call(x.requires_grad_())
    ((function, run, public, arguments),) = begun
    assert (run, public, arguments[0]) == (torch_op.call.run, "sinkhorn", x)
    assert function.backward is torch_op.apply.function.backward
    assert upcoming.call is None
    call(x)
    # its own first launch begins nothing
    p.backward(torch.ones_like(p))
    assert len(begun) == 1


def test_a_forward_that_fails_leaves_nothing_to_begin(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(launch, "forward", lambda *given: [].pop())
    with pytest.raises(IndexError):
        call(torch.randn(64, 4, 4, requires_grad=True))
    assert upcoming.call is None


def test_the_backward_waits_for_what_is_under_way(monkeypatch):
    """Not compiled twice."""
    done = []
    compiled = SimpleNamespace(wait=lambda: done.append("waited"))
    monkeypatch.setattr(dispatch, "compiling", {"function": compiled})
    monkeypatch.setattr(dispatch, "specialisation", lambda *given: given)
    monkeypatch.setattr(dispatch, "launch", lambda *given, **options: done.append("launched"))
    dispatch.launch_binary("function", (1,))
    assert done == ["waited", "launched"]


def test_the_thread_traces_nothing_while_helion_is_imported(monkeypatch):
    """Operators on meta tensors import torch._dynamo, and torch fails where two threads import it first."""
    traced = threading.Event()
    monkeypatch.setattr(ahead, "launches", lambda *given: traced.set() or [])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with FakeTensorMode():
        x = torch.empty(64, 4, 4, device="cuda")
    with generating:
        thread = ahead.begin(torch_op.apply.function, torch_op.call.run, "sinkhorn", [x])
        assert not traced.wait(0.2)
    thread.join()
    assert traced.is_set()


def test_whatever_fails_in_the_thread_releases_who_waits(monkeypatch, caplog):
    fail = mock.Mock(side_effect=RuntimeError("no compiler"))
    monkeypatch.setattr(ahead, "compilations", lambda *given, device: [("first", fail), ("second", fail)])
    monkeypatch.setattr(torch.cuda, "device", lambda device: threading.Lock())
    with pytest.raises(RuntimeError):
        ahead.compile_all([("kernel",)], GPU)
    assert dispatch.compiling == {}


def test_a_failure_in_the_thread_refuses_no_stored_config(monkeypatch, fresh_caches):
    """Tensors without data may fail where a call's tensors do not."""
    monkeypatch.setattr(upcoming, "notes", False)
    monkeypatch.setattr(ahead, "device_at", at_an_h200)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(launch, "constants", lambda *given: [].pop())
    x = torch.empty(8192, 4, 4, device="meta")
    given = x, 20, 1e-6, "deepseek", "rows", "helion", torch.float32
    with pytest.raises(IndexError):
        ahead.launches(torch_op.apply.function, torch_op.call.run, given, (True, *[False] * 6), GPU)
    assert not choices.refused


COMPILED = """
import contextlib, json, sys
import torch
from helion_sinkhorn.configs.device import DEVICES
import helion_sinkhorn
from helion_sinkhorn.lab.machine.presented import present_device
present_device(DEVICES["h100"])
import triton
from helion_sinkhorn.ops.sinkhorn import torch_op
from helion_sinkhorn.runtime import ahead, dispatch
from helion_sinkhorn.runtime.launch import Launcher, device_at, launching_with

compiled = []
triton.knobs.compilation.listener = lambda *, metadata, **_: compiled.append(metadata["name"])
torch.cuda.device = lambda device: contextlib.nullcontext()
gpu, x = torch.device("cuda", 0), torch.empty(8192, 4, 4, device="meta")
given = x, 20, 1e-6, "deepseek", "rows", "helion", torch.float32
forward = []
with launching_with(Launcher(lambda index: device_at(0), lambda *launch: forward.append(launch))):
    torch_op.call.run(*given)
needed = True, *[False] * 6
launches = ahead.launches(torch_op.apply.function, torch_op.call.run, given, needed, gpu)
ahead.compile_all([*forward, *launches], gpu)
heavy = {"helion", "torch._inductor", "torch._dynamo", "sklearn", "sympy"} & {*sys.modules}
print(json.dumps([compiled, sorted(heavy)]))
"""


def test_a_stored_call_and_its_gradient_are_compiled_without_helion(tmp_path, monkeypatch):
    monkeypatch.setenv("HELION_SINKHORN_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    names = ["_helion_sinkhorn_forward", "_helion_sinkhorn_backward"]
    assert json.loads(printed("-c", COMPILED).splitlines()[-1]) == [names, []]
    assert not (tmp_path / "kept").exists()
