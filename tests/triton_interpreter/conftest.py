"""Triton's interpreter in place of a GPU: what it needs to run what Helion generates.

Run by test_triton_interpreter.py in a process of its own, or by
`TRITON_INTERPRET=1 pytest tests/triton_interpreter`.
"""

from __future__ import annotations

import os

import pytest
import torch._inductor.runtime.triton_compat
import triton.language as tl

from helion_sinkhorn.configs.device import DEVICES
from helion_sinkhorn.kernels import serving

assert os.environ.get("TRITON_INTERPRET") == "1", "Triton reads TRITON_INTERPRET when it is imported"


class LibdeviceOnNumpy:
    """Helion writes libdevice.f(x); the interpreter knows the functions of triton.language only."""

    def __getattr__(self, name: str):
        return getattr(tl, name)


torch._inductor.runtime.triton_compat.libdevice = LibdeviceOnNumpy()


@pytest.fixture(autouse=True)
def generated_code(monkeypatch):
    """CPU tensors take the compiled path with the configs of an H200; inline assembly has no interpreter."""
    monkeypatch.setattr(serving, "device_at", lambda index: (DEVICES["h200"], "full", False))
