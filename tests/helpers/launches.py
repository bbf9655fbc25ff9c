"""Launches that a test makes differently from the package."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
import torch

from helion_sinkhorn.configs.device import DEVICES, Device
from helion_sinkhorn.ops.sinkhorn import api as sinkhorn_api
from helion_sinkhorn.runtime import checks, dispatch
from helion_sinkhorn.runtime import launch as door
from helion_sinkhorn.runtime.torch_op import Implementations

OPERATORS = "helion_sinkhorn.ops"
SITES = "helion_sinkhorn.ops.mhc.site"
"""Operators whose parts compute where their kernels do not."""


def launching_as(monkeypatch: pytest.MonkeyPatch, **ways: Any) -> None:
    """Make launches with these fields of a Launcher until the test ends, in every thread."""
    launcher = dataclasses.replace(door._launcher.get(), **ways)
    monkeypatch.setattr(door, "_launcher", ContextVar("launcher", default=launcher))


def at_an_h200(index: int) -> tuple[Device, str, bool]:
    """`device_at` where an H200 is."""
    return DEVICES["h200"], "ptx", False


def on_the_gpu(asked: str, name: str, x: torch.Tensor, beyond: Any = None) -> str:
    """`implementation_for` as if the tensors were on a GPU."""
    taken = asked != "pytorch" and x.dtype in checks.KERNEL_DTYPES and beyond is None
    return "helion" if taken else "pytorch"


def kernels_on_cpu(monkeypatch: pytest.MonkeyPatch, within: str = OPERATORS) -> None:
    """Let the operators of a package take their kernels for CPU tensors, whose bodies Helion interprets."""
    for name, module in list(sys.modules.items()):
        if name.startswith(within) and hasattr(module, "implementation_for"):
            monkeypatch.setattr(module, "implementation_for", on_the_gpu)
    monkeypatch.setattr(Implementations, "launching", lambda self, x: contextlib.nullcontext(self.launcher))
    monkeypatch.setattr(sinkhorn_api, "_accepted", {})


def noted_on_cpu(
    monkeypatch: pytest.MonkeyPatch,
    note: Callable[[str, tuple[Any, ...]], Any] = lambda name, _: name,
    within: str = OPERATORS,
) -> list[Any]:
    """What `note` makes of the kernel's name and the arguments of each launch on CPU tensors, in order."""
    noted: list[Any] = []

    def noting(kernel: Any, *arguments: Any) -> None:
        noted.append(note(kernel.kernel.name, arguments))
        dispatch.run(kernel, *arguments)

    kernels_on_cpu(monkeypatch, within)
    launching_as(monkeypatch, run=noting)
    return noted
