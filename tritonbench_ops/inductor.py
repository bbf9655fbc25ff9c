"""The backends of PyTorch: a function itself, and torch.compile of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

BASELINE, INDUCTOR = "eager", "torch_compile"
Backends = dict[str, Callable[[], Callable[..., Any]]]
"""Name -> what builds the function, which takes the leaves of an input and, where an operator has them, the
options of a workload.
"""


def compiled(function: Callable[..., Any], mode: str | None = None) -> Callable[..., Any]:
    """The function, compiled for one shape; its backward may run again and again on one forward pass."""
    import torch._functorch.config

    torch._functorch.config.donated_buffer = False
    return torch.compile(function, dynamic=False, mode=mode)


def of_pytorch(function: Callable[..., Any]) -> Backends:
    """BASELINE and INDUCTOR, each with what builds its function."""
    return {BASELINE: lambda: function, INDUCTOR: functools.partial(compiled, function)}
