"""torch.compile as a backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def compiled(function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """The function, compiled for one shape; its backward may run again and again on one forward pass."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False, mode=mode)
