"""Triton's interpreter in place of a GPU: what it needs to run what Helion generates.

Run by test_triton_interpreter.py in a process of its own, or by
`TRITON_INTERPRET=1 pytest tests/triton_interpreter`.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
import triton.language as tl
import triton.language.extra
from launches import launching_as
from triton.runtime import interpreter

from helion_sinkhorn.configs.device import DEVICES

assert os.environ.get("TRITON_INTERPRET") == "1", "Triton reads TRITON_INTERPRET when it is imported"


class LibdeviceOnNumpy:
    """Helion writes libdevice.f(x); the interpreter knows the functions of triton.language only."""

    def __getattr__(self, name: str):
        return getattr(tl, name)


triton.language.extra.libdevice = LibdeviceOnNumpy()


_convert_float = interpreter._convert_float


def rounded(x: np.ndarray, source: tl.dtype, target: tl.dtype, mode) -> np.ndarray:
    """float32 to bfloat16 as GPUs round it, where the interpreter cuts."""
    if (source, target) != (tl.float32, tl.bfloat16):
        return _convert_float(x, source, target, mode)
    narrow = torch.from_numpy(np.ascontiguousarray(x).view(np.float32)).bfloat16()
    return narrow.view(torch.int16).numpy().view(np.uint16)


interpreter._convert_float = rounded


def widened(x: interpreter.TensorHandle) -> np.ndarray:
    """bfloat16 numbers in float64."""
    return (x.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


_create_dot = interpreter.InterpreterBuilder.create_dot


def product(builder, a, b, d, *options):
    """A matrix product, of bfloat16 numbers too, whose bits the interpreter would multiply as integers.

    Theirs is exact but for one rounding: NumPy's rows would be summed in an order that follows their place.
    """
    if {a.dtype.scalar, b.dtype.scalar} != {tl.bfloat16}:
        return _create_dot(builder, a, b, d, *options)
    total = widened(a) @ widened(b) + d.data
    return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


interpreter.InterpreterBuilder.create_dot = product


@pytest.fixture(autouse=True)
def generated_code(monkeypatch):
    """CPU tensors take the compiled path with the configs of an H200; inline assembly has no interpreter."""
    launching_as(monkeypatch, device_at=lambda index: (DEVICES["h200"], "full", False))


@pytest.fixture
def as_compiled(generated_code, monkeypatch):
    """What a GPU runs but for its inline assembly: a division makes reciprocals."""
    launching_as(monkeypatch, device_at=lambda index: (DEVICES["h200"], "division", False))
