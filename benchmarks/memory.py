"""Memory: left-overs on the GPU freed, what a call allocates there, and what is still referred to."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


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


class LiveBytes(TorchDispatchMode):
    """Counts what operators made inside it and somebody still holds; `peak` is the most so far."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        output = function(*args, **(kwargs or {}))
        for t in tree_leaves(output):
            if isinstance(t, torch.Tensor):
                storage = t.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        self.peak = max(self.peak, self.held)
        return output

    @property
    def held(self) -> int:
        self.sizes = {ref: size for ref, size in self.sizes.items() if not ref.expired()}
        return sum(self.sizes.values())
