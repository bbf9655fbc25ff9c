"""Products of float32 matrices in PyTorch, as exact as float32."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

EXACT = "none", "ieee"
"""Settings that round no factor of a product."""
_changing = threading.Lock()
_inside = 0
_before: list[tuple[Any, str]] = []
"""Backends whose setting is changed, and what to set it to again."""


class float32_products(contextlib.ContextDecorator):
    """Round no factor of a product to TF32 or bfloat16, which `torch.set_float32_matmul_precision` may allow.

    The setting is the process's, so it holds in other threads too until the last thread leaves this block.
    """

    def __enter__(self) -> None:
        global _inside, _before
        with _changing:
            if not _inside:
                _before = []
                for backend in (torch.backends.cuda.matmul, torch.backends.mkldnn.matmul):
                    if backend.fp32_precision not in EXACT:
                        _before.append((backend, raised(backend)))
            _inside += 1

    def __exit__(self, *error: object) -> None:
        global _inside
        with _changing:
            _inside -= 1
            if not _inside:
                for backend, before in _before:
                    backend.fp32_precision = before


def raised(backend: Any) -> str:
    """Set a backend to float32 and return the setting that restores it.

    A backend without a setting of its own reports the setting of all backends, and has to keep following it.
    """
    before = backend.fp32_precision
    backend.fp32_precision = "none"
    follows = backend.fp32_precision == before
    backend.fp32_precision = "ieee"
    return "none" if follows else before
