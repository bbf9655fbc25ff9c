"""The memory of the GPU: left-overs freed, and what a call allocates."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch


def clear() -> None:
    """Free the memory that earlier calls left."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def most_allocated(run: Callable[[], object]) -> tuple[int, object]:
    """Bytes that a call allocates at most, by the count of CUDA's allocator, and its result."""
    # left-overs that are freed during the call would hide as much of what it allocates
    clear()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, result
