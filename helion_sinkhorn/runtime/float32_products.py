"""Products of float32 matrices in PyTorch, as exact as float32."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_changing = threading.Lock()
_inside = 0
_before: list[str] = []


@contextlib.contextmanager
def float32_products() -> Iterator[None]:
    """Round no factor of a product to TF32 or bfloat16, which `torch.set_float32_matmul_precision` may allow.

    The setting is the process's: meanwhile it holds in other threads too, and the last to leave restores it.
    """
    global _inside, _before
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul
    with _changing:
        if not _inside:
            _before = [backend.fp32_precision for backend in backends]
            for backend in backends:
                backend.fp32_precision = "ieee"
        _inside += 1
    try:
        yield
    finally:
        with _changing:
            _inside -= 1
            if not _inside:
                for backend, before in zip(backends, _before, strict=True):
                    backend.fp32_precision = before
